"""The REST interface: responses, errors, and media types."""

from __future__ import annotations

import json

import pytest

from parley.database.errors import StoreUnavailable
from parley.server.app import Settings
from tests.kit.http import ask
from tests.registry.app.serving import A2A, JSON, draft, filled, served

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def here():
    async with filled(publisher="registry.localhost") as made:
        yield made


async def test_results_are_found_by_filters_and_come_in_pages(here):
    filtered = await here.post(
        "/search", {"query": {"text": "agent", "filter": {"tags": "sailing"}}, "pageSize": 1}
    )
    assert [each["displayName"] for each in filtered.json["results"]] == ["Boat agent"]
    assert "pageToken" not in filtered.json
    first = (await here.post("/search", {"query": {"text": "agent"}, "pageSize": 1})).json
    body = {"query": {"text": "agent"}, "pageSize": 1, "pageToken": first["pageToken"]}
    second = (await here.post("/search", body)).json
    names = [each["displayName"] for page in (first, second) for each in page["results"]]
    assert sorted(names) == ["Boat agent", "Currency agent"]
    assert "pageToken" not in second


async def test_an_exploration_counts_the_values_of_fields(here):
    body = {"resultType": {"facets": [{"field": "type"}, {"field": "tags", "limit": 1}]}}
    answer = (await here.post("/explore", body)).json
    assert answer["resultType"] == "facets"
    assert answer["facets"]["type"] == {"buckets": [{"value": A2A, "count": 2}], "otherCount": 0}
    assert answer["facets"]["tags"]["otherCount"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "/operator%2fentries",
        "/operator%2Fentries",
        "/operator%252fentries",
        "/operator/x/../entries",
        "/agents%2fx",
        "/operator/import%2fx",
    ],
)
async def test_a_quoted_slash_separates_nothing(here, path):
    assert (await here.get(path)).status == 404
    assert (await here.get("/operator/entries")).status != 404


async def test_a_list_is_ordered_filtered_and_paged(here):
    answer = (await here.get("/agents?orderBy=displayName%20DESC&pageSize=1")).json
    assert [each["displayName"] for each in answer["items"]] == ["Currency agent"]
    assert answer["total"] == 2
    rest = await here.get(
        f"/agents?orderBy=displayName%20DESC&pageSize=1&pageToken={answer['pageToken']}"
    )
    assert [each["displayName"] for each in rest.json["items"]] == ["Boat agent"]
    filtered = await here.get("/agents?filter=tags%20%3D%20%27money%27")
    assert [each["displayName"] for each in filtered.json["items"]] == ["Currency agent"]


async def test_a_list_that_has_not_changed_is_not_sent_again(here):
    first = await here.get("/agents")
    assert first.headers["cache-control"] == "public, max-age=60"
    again = await here.get("/agents", {"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    other = await here.get("/agents?pageSize=1", {"If-None-Match": first.headers["etag"]})
    assert other.status == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "query"),
        ({"query": {}}, "text"),
        ({"query": {"text": ""}}, "empty"),
        ({"query": {"text": 5}}, "$.query.text"),
        ({"query": {"text": "x"}, "limit": 5}, "limit"),
        ({"query": {"text": "x", "federation": "auto"}}, "federation"),
        ({"query": {"text": "x"}, "federation": "maybe"}, "federation"),
        ({"query": {"text": "x"}, "pageSize": 0}, "pageSize"),
        ({"query": {"text": "x"}, "pageSize": 101}, "pageSize"),
        ({"query": {"text": "x"}, "pageSize": "5"}, "pageSize"),
        ({"query": {"text": "x"}, "pageToken": "made up"}, "pageToken"),
        ({"query": {"text": "x" * 2001}}, "2000"),
        ({"query": {"text": "x", "filter": {"tags": None}}}, "tags"),
        ({"query": {"text": "x", "filter": {"tags": {"a": "b"}}}}, "tags"),
        ({"query": {"text": "x", "filter": {f"f{n}": "v" for n in range(40)}}}, "32"),
        ({"query": {"text": "x", "filter": {"a b": "v"}}}, "a b"),
        ([], "object"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b'{"query": {"text": "x", "filter": {"a": ' + b"[" * 20_000, "JSON"),
    ],
)
async def test_a_search_that_is_wrong_is_refused_with_what_is_wrong(here, body, words):
    answer = await here.post("/search", body)
    assert answer.status == 400
    assert answer.json["errorCode"] == "INVALID_ARGUMENT"
    assert words in answer.json["message"]
    assert set(answer.json) == {"errorCode", "message"}


@pytest.mark.parametrize(
    "query",
    [
        "pageSize=0",
        "pageSize=101",
        "pageSize=x",
        "pageSize=000000001000000",
        "pageSize=" + "0" * 8 + "1" * 5000,
        "pageSize=%D9%A1",
        "pageSize=1&pageSize=2",
        "size=1",
        "orderBy=nothing",
        "filter=tags%20%3D",
        "filter=" + "x" * 5000,
        "pageToken=nonsense",
        "pageSize=%FF",
        "&".join(f"a{n}=1" for n in range(30)),
        "filter=" + "x" * 9000,
    ],
)
async def test_a_list_that_is_wrong_is_refused(here, query):
    answer = await here.get(f"/agents?{query}")
    assert (answer.status, answer.json["errorCode"]) == (400, "INVALID_ARGUMENT")


async def test_a_body_is_json_and_bounded(here):
    text = await ask(here.url, "POST", "/search", b'{"query": {"text": "x"}}')
    assert (text.status, text.json["errorCode"]) == (415, "INVALID_ARGUMENT")
    form = {"Content-Type": "text/plain"}
    assert (await ask(here.url, "POST", "/search", b"{}", form)).status == 415
    large = json.dumps({"query": {"text": "x" * 70_000}}).encode()
    refused = await ask(here.url, "POST", "/search", large, JSON)
    assert (refused.status, refused.json["errorCode"]) == (413, "INVALID_ARGUMENT")


async def test_the_head_of_a_list_is_that_of_its_body(here):
    head = await ask(here.url, "HEAD", "/agents")
    got = await here.get("/agents")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == got.headers["etag"]
    assert head.headers["content-type"] == "application/json"


async def test_the_registry_publishes_itself_and_its_agent(here):
    catalog = await here.get("/.well-known/ard.json")
    assert catalog.headers["content-type"] == "application/ai-catalog+json"
    registry, agent = catalog.json["entries"]
    assert registry["type"] == "application/ai-registry+json"
    assert registry["identifier"] == "urn:air:registry.localhost:registry:search"
    assert registry["url"] == f"{here.url}/"
    assert agent["type"] == A2A
    assert agent["url"] == f"{here.url}/a2a/.well-known/agent-card.json"
    page = await here.get("/")
    assert 'rel="ard ai-catalog"' in page.headers["link"]
    assert (
        f"Agentmap: {here.url}/.well-known/ard.json"
        in (await here.get("/robots.txt")).body.decode()
    )


async def test_pages_of_other_origins_search_as_the_settings_say():
    origin = {"Origin": "https://portal.example"}
    settings = Settings(cors_origins=("https://portal.example",))
    async with served(settings=settings) as here:
        answer = await here.post("/search", {"query": {"text": "x"}}, origin)
        assert answer.headers["access-control-allow-origin"] == "https://portal.example"
        refused = await here.post("/search", {"query": {}}, origin)
        assert refused.headers["access-control-allow-origin"] == "https://portal.example"
    async with served() as here:
        answer = await here.post("/search", {"query": {"text": "x"}}, origin)
        assert "access-control-allow-origin" not in answer.headers


async def test_the_page_shows_texts_of_others_as_texts():
    evil = "<script>alert(1)</script> agent"
    async with served() as here:
        entry = {
            "displayName": evil,
            "description": "<img src=x onerror=alert(1)>" + "x" * 9000,
            "type": A2A,
        }
        await here.registry.index.put([draft("evil", entry=entry, texts={"A": evil})])
        for path in ("/", "/?q=agent", "/?q=%3Cscript%3Ealert(1)%3C/script%3E"):
            page = await here.get(path)
            assert page.status == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert b"<script" not in page.body
            assert b"<img" not in page.body
            assert b"&lt;script&gt;" in page.body
            assert len(page.body) < 20_000


async def test_an_index_that_cannot_be_reached_is_a_503_and_the_registry_is_not_ready(
    here, monkeypatch
):
    async def unavailable(*_args, **_options):
        raise StoreUnavailable("postgresql://secret@host is gone")

    async def broken(*_args, **_options):
        raise RuntimeError("secret detail")

    assert (await here.get("/health/ready")).json == {"status": "ready"}
    monkeypatch.setattr(here.registry.index, "sources", unavailable)
    ready = await here.get("/health/ready")
    assert (ready.status, ready.json["status"]) == (503, "unavailable")
    monkeypatch.setattr(here.registry.searcher, "browse", unavailable)
    answer = await here.get("/agents")
    assert (answer.status, answer.json["errorCode"]) == (503, "UNAVAILABLE")
    assert answer.headers["retry-after"] == "2"
    assert b"secret" not in answer.body
    monkeypatch.setattr(here.registry.searcher, "browse", broken)
    answer = await here.get("/agents")
    assert (answer.status, answer.json["errorCode"]) == (500, "INTERNAL_ERROR")
    assert "reference" in answer.json["message"]
    assert b"secret" not in answer.body
