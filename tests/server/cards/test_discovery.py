"""Agent cards at their well-known paths, and what a server says that has none there."""

import json
from email.utils import formatdate

import pytest

from parley.server.app import Endpoint, Settings, create_app
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.discovery import CardPage
from parley.server.run import serving
from parley.wire import versions
from tests.kit.http import ask, call, connection, post
from tests.kit.scripted import Scripted, app_of, card_of
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


def url_of(response):
    return response.json["supportedInterfaces"][0]["url"]


async def test_the_card_is_json_that_may_be_cached(url):
    response = await ask(url, "GET", CARD)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "public, max-age=60"
    assert response.headers["etag"].startswith('"')
    assert response.headers["last-modified"].endswith(" GMT")
    assert versions.read_card(response.json).name == "Scripted"


async def test_the_card_needs_no_version_and_no_caller():
    def identify(scope):
        raise AssertionError("a card is public")

    async with serving(app_of(identify=identify)) as url:
        assert (await ask(url, "GET", CARD)).status == 200


async def test_the_old_path_has_the_same_card(url):
    new, old = await ask(url, "GET", CARD), await ask(url, "GET", "/.well-known/agent.json")
    assert new.body == old.body
    assert new.headers["etag"] == old.headers["etag"]


async def test_head_has_the_headers_of_get(url):
    async with connection(url) as http:
        whole = await http.ask("GET", CARD)
        head = await http.ask("HEAD", CARD)
        assert head.status == 200
        assert head.body == b""
        for name in ("content-length", "content-type", "etag", "last-modified", "cache-control"):
            assert head.headers[name] == whole.headers[name]
        assert (await http.ask("GET", CARD)).body == whole.body


async def test_a_known_card_is_not_sent_again(url):
    etag = (await ask(url, "GET", CARD)).headers["etag"]
    for known in (etag, f"W/{etag}", f'"x", {etag}', f'"x",W/{etag} , "y"', "*", " * "):
        for method in ("GET", "HEAD"):
            response = await ask(url, method, CARD, headers={"If-None-Match": known})
            assert response.status == 304, known
            assert response.body == b""
            assert response.headers["etag"] == etag
            assert "cache-control" in response.headers
    for unknown in ('"x"', 'W/"x"', etag.strip('"'), "", '"x", "y"', '"*"'):
        response = await ask(url, "GET", CARD, headers={"If-None-Match": unknown})
        assert response.status == 200, unknown


async def test_a_card_that_did_not_change_since_is_not_sent_again(url):
    modified = (await ask(url, "GET", CARD)).headers["last-modified"]
    fresh = await ask(url, "GET", CARD, headers={"If-Modified-Since": modified})
    assert fresh.status == 304
    for since in (formatdate(0, usegmt=True), "yesterday", ""):
        stale = await ask(url, "GET", CARD, headers={"If-Modified-Since": since})
        assert stale.status == 200
    # The tag decides where both are given.
    both = {"If-Modified-Since": modified, "If-None-Match": '"x"'}
    assert (await ask(url, "GET", CARD, headers=both)).status == 200


async def test_a_card_takes_no_other_method(url):
    response = await post(url, call(), path=CARD)
    assert response.status == 405
    assert response.headers["allow"] == "GET, HEAD"


async def test_a_card_names_the_address_that_it_was_asked_at(url):
    assert url_of(await ask(url, "GET", CARD)) == url
    given = {"Host": "LocalHost"}
    assert url_of(await ask(url, "GET", CARD, headers=given)) == "http://localhost"
    given = {"Host": "[::1]:8080"}
    assert url_of(await ask(url, "GET", CARD, headers=given)) == "http://[::1]:8080"


async def test_a_card_for_a_request_without_a_host_names_the_server(url):
    async with connection(url) as http:
        await http.write(b"GET %b HTTP/1.0\r\n\r\n" % CARD.encode())
        assert url_of(await http.response()) == url


@pytest.mark.parametrize(
    "host",
    [
        "evil.example/path",
        "a b",
        "user@evil.example",
        "evil.example:99999",
        "evil.example:",
        "evil.example:80:80",
        "evil.example?x",
        "evil.example#x",
        'evil.example"',
        "<script>",
        "a,b",
        "[::1",
        "[:::::]",
        "[not-an-address]",
        "x" * 300,
        "ex\xe4mple.com",
    ],
)
async def test_a_host_that_cannot_be_one_is_refused(url, host):
    response = await ask(url, "GET", CARD, headers={"Host": host})
    assert response.status == 400
    assert "Host" in response.json["error"]
    called = await post(url, call(), {"Host": host})
    assert called.status == 400
    assert "Host" in called.error["message"]
    async with serving(app_of(settings=Settings(allowed_hosts=("*",)))) as everywhere:
        response = await ask(everywhere, "GET", CARD, headers={"Host": host})
        assert response.status == 400
        # It has no say in calls, which name no address.
        assert "result" in (await post(everywhere, call(), {"Host": host})).json


async def test_a_proxy_is_believed_only_when_told_to():
    forwarded = {
        "X-Forwarded-Host": "public.example, inner",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/agents/",
    }
    async with serving(app_of()) as url:
        assert url_of(await ask(url, "GET", CARD, headers=forwarded)) == url
    async with serving(app_of(settings=Settings(trust_proxy=True))) as url:
        response = await ask(url, "GET", CARD, headers=forwarded)
        assert url_of(response) == "https://public.example/agents/"
        assert url_of(await ask(url, "GET", CARD)) == url
        for name, value in (
            ("X-Forwarded-Host", "a/b"),
            ("X-Forwarded-Prefix", "agents"),
            ("X-Forwarded-Prefix", "/a?b"),
            ("X-Forwarded-Proto", "javascript"),
        ):
            refused = await ask(url, "GET", CARD, headers={name: value})
            assert refused.status == 400, value


async def test_a_public_address_that_is_set_is_the_one_that_is_named():
    async with serving(app_of(url="https://agents.example/time/")) as url:
        response = await ask(url, "GET", CARD, headers={"Host": "localhost:1"})
        assert url_of(response) == "https://agents.example/time/"


async def test_a_card_that_cannot_be_made_is_an_error_with_a_reference(caplog):
    def broken(url):
        raise RuntimeError("hunter2")

    app = create_app({"": Endpoint(Scripted(), broken)})
    async with serving(app) as url:
        response = await ask(url, "GET", CARD)
        assert response.status == 500
        assert b"hunter2" not in response.body
        assert (await ask(url, "GET", "/health/live")).status == 200


# The cache of a card


async def served(page, host="a.example", **headers):
    """Return what a page answers to a GET."""
    sent = []

    async def send(message):
        sent.append(message)

    given = {"host": host, **headers}
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": CARD,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    await page(scope, None, send)
    return dict(sent[0]["headers"]), sent[1]["body"]


ROOT = AdvertisedInterfaces("", url=None, trust_proxy=False)


async def test_cards_are_kept_for_a_bounded_number_of_addresses():
    made = []

    def card(interfaces):
        made.append(interfaces[0].url)
        return card_of()(interfaces)

    page = CardPage(Endpoint(Scripted(), card), ROOT, settings=Settings(), clock=Clock(1_000_000.0))
    for _ in range(3):
        await served(page, "a.example")
    assert len(made) == 1
    for number in range(200):
        await served(page, f"h{number}.example")
    assert len(page._files) == 64
    await served(page, "a.example")
    assert made.count("http://a.example") == 2


async def test_a_card_that_changes_is_noticed_when_caches_may_notice():
    names = ["first"]
    clock = Clock(1_000_000.0)
    page = CardPage(
        Endpoint(Scripted(), lambda interfaces: card_of(names[0])(interfaces)),
        ROOT,
        settings=Settings(card_max_age=60),
        clock=clock,
    )
    head, body = await served(page)
    names[0] = "second"
    clock.now += 59
    assert await served(page) == (head, body)
    clock.now += 1
    changed, body = await served(page)
    assert json.loads(body)["name"] == "second"
    assert changed[b"etag"] != head[b"etag"]
    assert changed[b"last-modified"] != head[b"last-modified"]
    # One that is made anew and is the same keeps its date.
    clock.now += 100
    assert await served(page) == (changed, body)


# Pages of other origins


async def test_other_origins_may_call_only_when_it_is_set():
    origin = {"Origin": "https://console.example"}
    preflight = {
        **origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "a2a-version,content-type,last-event-id",
    }
    async with serving(app_of()) as url:
        card = await ask(url, "GET", CARD, b"", origin)
        assert "access-control-allow-origin" not in card.headers
    settings = Settings(cors_origins=("https://console.example",))
    async with serving(app_of(settings=settings)) as url:
        card = await ask(url, "GET", CARD, b"", origin)
        assert card.headers["access-control-allow-origin"] == "https://console.example"
        assert "Origin" in card.headers["vary"]
        assert "ETag" in card.headers["access-control-expose-headers"]
        allowed = await ask(url, "OPTIONS", "/", b"", preflight)
        assert allowed.status == 200
        assert "POST" in allowed.headers["access-control-allow-methods"]
        delete = {**preflight, "Access-Control-Request-Method": "DELETE"}
        delete["Access-Control-Request-Headers"] = "a2a-extensions,x-a2a-extensions,authorization"
        assert (await ask(url, "OPTIONS", "/tasks/t/x", b"", delete)).status == 200
        answer = await post(url, call(), origin)
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        other = await ask(url, "OPTIONS", "/", b"", {**preflight, "Origin": "https://evil.example"})
        assert other.status == 400
