"""Permissions to search, see, publish and operate."""

from __future__ import annotations

import pytest

from parley.registry.records import EntryStanding, Trust
from tests.registry.app.serving import SCHEME, draft, key, owner, served

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here():
    """A registry whose callers have keys; search is public."""
    async with served(auth=SCHEME, public_search=True) as made:
        await made.registry.index.put(
            [
                draft("open-agent"),
                draft(
                    "ada-agent", audience=(f"caller:{owner('ada')}",), texts={"A": "agent of ada"}
                ),
                draft("team-agent", audience=("scope:team-bob",), texts={"A": "agent of a team"}),
                draft(
                    "lost-agent",
                    standing=EntryStanding.REJECTED,
                    reason="its card is wrong",
                    owner=owner("ada"),
                    texts={"A": "lost agent"},
                ),
            ]
        )
        yield made


def _id(name: str) -> str:
    return f"/agents/urn:air:agent.localhost:agent:{name}"


async def test_lists_counts_and_single_entries_show_no_more_than_searches(here):
    assert (await here.get("/agents")).json["total"] == 1
    assert (await here.get("/agents", key("ada"))).json["total"] == 2
    body = {"resultType": {"facets": [{"field": "publisher"}]}}
    for headers, count in (({}, 1), (key("ada"), 2), (key("root"), 3)):
        buckets = (await here.post("/explore", body, headers)).json["facets"]["publisher"]
        assert buckets["buckets"][0]["count"] == count
    absent = await here.get(_id("nobody"))
    hidden = await here.get(_id("ada-agent"))
    assert hidden.status == absent.status == 404
    assert hidden.json["message"].replace("ada-agent", "nobody") == absent.json["message"]
    assert (await here.get(_id("ada-agent"), key("ada"))).status == 200
    assert (await here.get(_id("ada-agent"), key("bob"))).status == 404
    page = await here.get("/?q=agent")
    assert b"ada-agent" not in page.body


async def test_the_owner_and_operators_see_why_an_entry_is_not_listed(here):
    assert (await here.get(_id("lost-agent"))).status == 404
    assert (await here.get(_id("lost-agent"), key("bob"))).status == 404
    for who in ("ada", "root"):
        whole = (await here.get(_id("lost-agent"), key(who))).json
        shown = whole["registry"]["details"]
        assert (shown["standing"], shown["reason"]) == ("rejected", "its card is wrong")
        assert [each["source"] for each in shown["entries"]] == [shown["source"]]


async def test_answers_that_depend_on_the_caller_are_not_shared_by_caches(here):
    answer = await here.get("/agents", key("ada"))
    assert answer.headers["cache-control"] == "private, max-age=60"
    assert "X-API-Key" in answer.headers["vary"]
    other = await here.get("/agents", {"If-None-Match": answer.headers["etag"]})
    assert other.status == 200


async def test_refused_credentials_are_refused_where_none_are_needed_too(here):
    answer = await here.post("/search", {"query": {"text": "x"}}, {"X-API-Key": "wrong"})
    assert (answer.status, answer.json["errorCode"]) == (401, "UNAUTHENTICATED")


async def test_a_registry_may_require_credentials_for_searches():
    async with served(auth=SCHEME) as here:
        for path in ("/agents", "/", "/agents/urn:air:agent.localhost:agent:x", "/openapi.json"):
            answer = await here.get(path)
            assert (answer.status, answer.json["errorCode"]) == (401, "UNAUTHENTICATED"), path
        answer = await here.post("/search", {"query": {"text": "x"}})
        assert answer.status == 401
        assert (await here.get("/agents", key("ada"))).status == 200
        assert (await here.get("/health/live")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/operator/entries", None),
        ("GET", "/operator/sources", None),
        ("GET", "/operator/audit", None),
        ("POST", "/operator/sources", {"url": "https://example.com/"}),
        ("DELETE", "/operator/sources?url=https://example.com/", None),
        ("POST", "/operator/entries/urn:air:agent.localhost:agent:x", {"standing": "listed"}),
    ],
)
async def test_what_operators_do_needs_their_scope(here, method, path, body):
    assert (await _ask(here, method, path, body, {})).status == 401
    refused = await _ask(here, method, path, body, key("ada"))
    assert (refused.status, refused.json["errorCode"]) == (403, "PERMISSION_DENIED")
    assert "registry:operate" in refused.json["message"]
    assert (await _ask(here, method, path, body, key("root"))).status in (200, 201, 204, 404)


async def _ask(here, method, path, body, headers):
    if method == "POST":
        return await here.post(path, body, headers)
    return await (here.get if method == "GET" else here.delete)(path, headers)


async def test_acts_of_operators_are_in_the_audit(here):
    await here.post("/operator/sources", {"url": "https://example.com/"}, key("root"))
    path = "/operator/entries/urn:air:agent.localhost:agent:ada-agent"
    body = {"standing": "rejected", "reason": "a complaint"}
    assert (await here.post(path, body, key("root"))).status == 200
    lines = (await here.get("/operator/audit", key("root"))).json["lines"]
    found = {line["kind"]: line for line in lines}
    assert found["source.added"]["actor"] == "root"
    decided = next(line for kind, line in found.items() if kind.startswith("entry."))
    assert decided["subject"] == "urn:air:agent.localhost:agent:ada-agent"
    assert (await here.get(_id("ada-agent"), key("ada"))).status == 404


async def test_an_entry_whose_signature_does_not_hold_cannot_be_listed(here):
    failed = draft("forged", trust=Trust.FAILED, standing=EntryStanding.REJECTED)
    await here.registry.index.put([failed])
    path = "/operator/entries/urn:air:agent.localhost:agent:forged"
    answer = await here.post(path, {"standing": "listed"}, key("root"))
    assert (answer.status, answer.json["errorCode"]) == (409, "CONFLICT")


async def test_a_limit_is_told_with_how_long_to_wait():
    limits = ["2/minute per caller on searchAgents"]
    async with served(auth=SCHEME, public_search=True, limits=limits) as here:
        body = {"query": {"text": "x"}}
        for _ in range(2):
            answer = await here.post("/search", body)
            assert answer.status == 200
        assert "r=0" in answer.headers["ratelimit"]
        refused = await here.post("/search", body)
        assert (refused.status, refused.json["errorCode"]) == (429, "RATE_LIMIT_EXCEEDED")
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert (await here.post("/search", body, key("ada"))).status == 200
        assert (await here.get("/agents")).status == 200


async def test_a_limit_per_tenant_holds_for_all():
    async with served(limits=["1/minute per tenant on listAgents"]) as here:
        assert (await here.get("/agents")).status == 200
        assert (await here.get("/agents")).status == 429
