"""Agent cards at their well-known paths, and the response of a server without a card there."""

import pytest

from parley.server.app import Endpoint, Settings
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.discovery import CardPage
from parley.server.run import serving
from tests.kit.http import ask, call, post
from tests.kit.scripted import Scripted, app_of, card_of
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


def url_of(response):
    return response.json["supportedInterfaces"][0]["url"]


async def test_the_card_needs_no_version_and_no_caller():
    def identify(scope):
        raise AssertionError("a card is public")

    async with serving(app_of(identify=identify)) as url:
        assert (await ask(url, "GET", CARD)).status == 200


async def test_a_card_takes_no_other_method(url):
    response = await post(url, call(), path=CARD)
    assert response.status == 405
    assert response.headers["allow"] == "GET, HEAD"


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
        # Calls contain no address, so the header does not matter.
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


# The cache of a card


async def served(page, host="a.example", **headers):
    """Return the response of a page to a GET."""
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
