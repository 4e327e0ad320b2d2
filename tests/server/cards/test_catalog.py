"""A server's published catalog: its contents, audience, and discovery."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest

import parley
from parley import Agent
from parley.model.service import Caller
from parley.registry.served.catalog import CatalogItem, CatalogPage
from parley.security import Bearer, anonymous
from parley.security.signing.keys import SigningKey, SigningKeys
from parley.server.app import Settings
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.http import ask, post
from tests.kit.http import call as rpc
from tests.kit.scripted import card_of
from tests.security.signing.key_sets import key_set

pytestmark = pytest.mark.anyio


CATALOG, CARD = "/.well-known/ard.json", "/.well-known/agent-card.json"
TOKEN = {"authorization": "Bearer good"}


def agent(name="Time agent", *examples, **options):
    made = Agent(name, description=f"{name}: tells the time.", version="1.2.0", **options)

    @made.skill(tags=["time"], examples=examples or ("What time is it?", "And in Tokyo?"))
    async def tell_time(text: str) -> str:
        """Tells the time of a zone."""
        return "noon"

    return made


def app_of(agents=None, **options):
    settings = Settings(allowed_hosts=("*",), **options.pop("settings", {}))
    options.setdefault("publisher", "example.com")
    if agents is None and "tenants" not in options:
        agents = agent()
    return parley.asgi(agents, settings=settings, **options)


# Contents


# Tenants


# Without a publisher


# Audience


async def test_a_worker_publishes_nothing():
    store = MemoryTaskStore(logs=MemoryLogs())
    app = parley.asgi(agent(), store=store, role="worker", publisher="example.com")
    async with serving(app) as url:
        for path in (CATALOG, "/robots.txt"):
            assert (await ask(url, "GET", path)).status == 503


# HTTP


async def test_pages_of_other_origins_may_read_it_when_that_is_set():
    origin = {"Origin": "https://shop.example"}
    async with serving(app_of()) as url:
        answer = await ask(url, "GET", CATALOG, headers=origin)
        assert "access-control-allow-origin" not in answer.headers
    async with serving(app_of(settings={"cors_origins": ("*",)})) as url:
        answer = await ask(url, "GET", CATALOG, headers=origin)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "Link" in answer.headers["access-control-expose-headers"]


class Clock:
    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


def page_of(clock, *, keys=None, cards=None, url=None):
    from parley.registry.served.catalog import ManifestSigner

    made = []
    card = card_of("Time")(())

    def current():
        made.append(1)
        return cards[-1] if cards else card

    advertised = AdvertisedInterfaces("", url=url, trust_proxy=False)
    item = CatalogItem("urn:air:example.com:agent:time", current, advertised)
    signer = None if keys is None else ManifestSigner(keys, url)
    page = CatalogPage(
        [item], advertised, publisher="example.com", settings=Settings(), signer=signer, clock=clock
    )
    return page, made


async def served(page, host="a.example", **headers):
    sent = []

    async def send(message):
        sent.append(message)

    given = [(b"host", host.encode()), *((k.encode(), v.encode()) for k, v in headers.items())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": CATALOG,
        "scheme": "https",
        "headers": given,
        "query_string": b"",
    }
    await page(scope, None, send)
    return sent


async def test_catalogs_are_kept_for_a_bounded_number_of_addresses():
    clock = Clock()
    page, made = page_of(clock)
    await served(page)
    first = len(made)
    await served(page)
    assert len(made) == first  # cached
    for number in range(200):
        await served(page, f"h{number}.example")
    assert len(page._files) == 64
    await served(page)
    assert len(made) > 201 * first


# Trust


async def test_addresses_that_requests_make_up_cost_no_signatures(monkeypatch):
    made = []
    sign = SigningKey.sign

    def counted(self, data):
        made.append(1)
        return sign(self, data)

    monkeypatch.setattr(SigningKey, "sign", counted)
    page, _ = page_of(Clock(), keys=SigningKeys.parse(key_set()))
    for number in range(100):
        await served(page, f"h{number}.example")
    assert len(made) == 1


# Discovery


def target(response):
    """Return the target of the only link to a catalog."""
    (found,) = re.findall(r'<([^>]+)>; rel="ard ai-catalog"', response.headers["link"])
    return found


@pytest.mark.parametrize("url_option", [None, "https://agents.example.com/all/"])
async def test_cards_pages_and_the_root_lead_to_the_catalog(url_option):
    agents, tenants = {"/": agent(), "/a/b": agent("Clerk")}, {"acme": agent("Shop")}
    async with serving(app_of(agents, tenants=tenants, url=url_option)) as url:
        wanted = f"https://agents.example.com/all{CATALOG}" if url_option else url + CATALOG
        cards = ["", "/acme", "/a/b", "/a2a/time-agent", "/a2a/a-b", "/a2a/acme"]
        paths = [prefix + name for prefix in cards for name in (CARD, "/.well-known/agent.json")]
        for path in ["/", *paths, f"{CARD}?tenant=acme"]:
            for method in ("GET", "HEAD"):
                response = await ask(url, method, path)
                assert urljoin(url + path, target(response)) == wanted, path
        for path in [*cards[1:], *(f"{prefix}/" for prefix in cards)]:
            response = await ask(url, "GET", path, headers={"Accept": "text/html"})
            assert urljoin(url + path, target(response)) == wanted, path
            page = response.body.decode()
            head = page[: page.index("</head>")]
            (href,) = re.findall(r'<link rel="ard ai-catalog"[^>]* href="([^"]+)">', head)
            assert urljoin(url + path, href) == wanted
        etag = (await ask(url, "GET", CARD)).headers["etag"]
        fresh = await ask(url, "GET", CARD, headers={"If-None-Match": etag})
        assert fresh.status == 304
        assert urljoin(url + CARD, target(fresh)) == wanted
        assert "link" not in (await post(url, rpc())).headers


async def test_an_address_with_characters_of_its_own_breaks_no_link():
    app = app_of(url='https://agents.example.com/a">b<c')
    async with serving(app) as url:
        link = (await ask(url, "GET", CARD)).headers["link"]
        assert link.startswith("<https://agents.example.com/a%22%3Eb%3Cc/.well-known/ard.json>")
        page = (await ask(url, "GET", "/", headers={"Accept": "text/html"})).body
        assert b'a">b' not in page


# The domain's card path


@pytest.mark.parametrize("publisher", ["", "example.com"])
async def test_the_card_of_a_sole_agent_is_at_the_domains_card_path(publisher):
    async with serving(app_of({"/time": agent()}, publisher=publisher)) as url:
        own, at_domain = await ask(url, "GET", f"/time{CARD}"), await ask(url, "GET", CARD)
        assert at_domain.status == 200
        assert at_domain.body == own.body
        assert at_domain.json["supportedInterfaces"][0]["url"] == f"{url}/time"
        old = await ask(url, "GET", "/.well-known/agent.json")
        assert old.body == own.body
        assert (await ask(url, "GET", f"{CARD}?assistant_id=time")).status == 200
        assert (await ask(url, "GET", f"{CARD}?assistant_id=boat")).status == 404
        async with parley.connect(url) as remote:
            assert (await remote.send("Now?")).text == "noon"


async def test_the_domains_card_path_lists_several_agents_and_the_catalog():
    async with serving(app_of([agent(), agent("Boat agent")])) as url:
        response = await ask(url, "GET", CARD)
        assert response.status == 404
        assert [each["url"] for each in response.json["agents"]] == [
            f"{url}/time-agent",
            f"{url}/boat-agent",
        ]
        assert response.json["catalog"] == url + CATALOG
        assert urljoin(url + CARD, target(response)) == url + CATALOG
        root = await ask(url, "GET", "/")
        assert root.json["catalog"] == url + CATALOG
        # An arbitrary path is repeated in no header.
        assert "link" not in (await ask(url, "GET", "/x" * 200)).headers


async def test_the_card_of_a_sole_agent_is_for_those_who_see_it():
    bank = agent("Bank", security=Bearer({"good": Caller(id="ada")}.get) | anonymous)
    settings = {"restrict": {"card": "authenticated"}}
    async with serving(app_of({"/bank": bank}, settings=settings)) as url:
        refused = await ask(url, "GET", CARD)
        assert refused.status == 401
        assert b"Bank" not in refused.body
        assert (await ask(url, "GET", CARD, headers=TOKEN)).status == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unlisted": ["/nowhere"]}, "neither an agent's path nor a tenant; known are /"),
        ({"unlisted": ["/"]}, "excludes all agents from the catalog"),
        ({"unlisted": "/"}, "a list of paths"),
        (
            {"agents": {"/a-b": agent("A"), "/a/b": agent("B")}},
            r"the agent at /a-b and the agent at /a/b would both be .*urn:air:.*:agent:a-b",
        ),
        (
            {"agents": agent(), "tenants": {"acme": agent("Catalog")}},
            "the agent of the tenant acme and the catalog of the tenant acme would both be",
        ),
        ({"publisher": "localhost"}, "not a domain name such as example.com"),
        ({"publisher": "https://example.com"}, "not a domain name"),
        ({"publisher": "127.0.0.1"}, "not a domain name"),
        ({"publisher": "exa mple.com"}, "not a domain name"),
        ({"publisher": 7}, "publisher= must be a domain"),
        ({"namespace": "a b"}, "namespace= may have letters"),
        ({"namespace": ":"}, "namespace= may have letters"),
        ({"namespace": 7}, "namespace= may have letters"),
        ({"publisher": "", "namespace": "x"}, "namespace= concerns the catalog"),
        ({"publisher": "", "unlisted": ["/"]}, "unlisted= concerns the catalog"),
    ],
)
def test_what_cannot_be_published_is_refused(options, words):
    options = dict(options)
    with pytest.raises(ValueError, match=words):
        app_of(options.pop("agents", None), **options)
