"""The catalog that a server publishes: what is in it, for whom, and how it is found."""

from __future__ import annotations

import json
import logging
import re
from urllib.parse import urljoin

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import parley
from parley import Agent
from parley.model.service import Caller
from parley.registry.catalog.reading import problems_of, read_catalog
from parley.registry.served.catalog import CatalogItem, CatalogPage
from parley.security import Bearer, anonymous
from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.canonical import canonical
from parley.security.signing.keys import SigningKey, SigningKeys, decode, encode
from parley.server.app import Settings
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.http import ask, post
from tests.kit.http import call as rpc
from tests.kit.scripted import card_of
from tests.security.signing.key_sets import key_file, key_set, private_jwk

pytestmark = pytest.mark.anyio

CATALOG, CARD = "/.well-known/ard.json", "/.well-known/agent-card.json"
PUBLIC = "https://agents.example.com"
TOKEN = {"authorization": "Bearer good"}
ELSEWHERE = ["192.0.2.0/24"]


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


async def catalog_of(url, path=CATALOG, **options):
    response = await ask(url, "GET", path, **options)
    assert response.status == 200, response.body
    assert [str(each) for each in problems_of(response.body) if each.is_error] == []
    return response.json


def identifiers(catalog):
    return [entry["identifier"] for entry in catalog["entries"]]


# What is in it


async def test_the_entry_of_an_agent_is_made_of_its_card():
    async with serving(app_of()) as url:
        catalog = await catalog_of(url)
        (entry,) = catalog["entries"]
        card = (await ask(url, "GET", CARD)).json
    assert catalog["specVersion"] == "1.0"
    assert catalog["host"] == {"displayName": "example.com", "identifier": "example.com"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.pop("updatedAt"))
    assert entry == {
        "identifier": "urn:air:example.com:agent:time-agent",
        "displayName": card["name"],
        "type": "application/a2a-agent-card+json",
        "mediaType": "application/a2a-agent-card+json",
        "url": url + CARD,
        "description": card["description"],
        "version": card["version"],
        "tags": ["time"],
        "capabilities": ["tell_time"],
        "representativeQueries": ["What time is it?", "And in Tokyo?"],
        "trustManifest": {
            "identity": "https://example.com",
            "identityType": "https",
            "provenance": [
                {"relation": "publishedFrom", "sourceId": "urn:air:example.com:agent:time-agent"}
            ],
        },
    }


async def test_several_agents_are_known_by_their_paths():
    agents = {"/": agent("Root", key="front"), "/time": agent(), "/shop/clerk": agent("Clerk")}
    async with serving(app_of(agents, namespace="finance:trading")) as url:
        catalog = await catalog_of(url)
        assert identifiers(catalog) == [
            "urn:air:example.com:finance:trading:front",
            "urn:air:example.com:finance:trading:time",
            "urn:air:example.com:finance:trading:shop-clerk",
        ]
        for entry, path in zip(catalog["entries"], agents, strict=True):
            assert entry["url"] == url + path.rstrip("/") + CARD
            assert (await ask(url, "GET", entry["url"].removeprefix(url))).status == 200


async def test_an_identifier_stays_when_the_name_and_the_address_change():
    async with serving(app_of(agent("Time", key="time"))) as url:
        before = identifiers(await catalog_of(url))
        assert identifiers(await catalog_of(url, headers={"Host": "other.example:1"})) == before
    async with serving(app_of(agent("Zones", key="time"), url=PUBLIC)) as url:
        assert identifiers(await catalog_of(url)) == before


async def test_who_asks_has_no_say_in_whose_agents_they_are():
    forged = {
        "Host": "evil.example",
        "X-Forwarded-Host": "evil.example",
        "Forwarded": "host=evil.example",
    }
    async with serving(app_of(url=PUBLIC, settings={"trust_proxy": True})) as url:
        body = (await ask(url, "GET", CATALOG, headers=forged)).body
        assert b"evil" not in body
        assert b"https://agents.example.com/.well-known/agent-card.json" in body
        assert b"evil" not in (await ask(url, "GET", "/robots.txt", headers=forged)).body
    async with serving(app_of()) as url:
        catalog = (await ask(url, "GET", CATALOG, headers=forged)).json
        assert identifiers(catalog) == ["urn:air:example.com:agent:time-agent"]
        assert catalog["entries"][0]["trustManifest"]["identity"] == "https://example.com"


async def test_the_address_is_the_one_that_cards_name():
    async with serving(app_of(settings={"trust_proxy": True})) as url:
        proxied = {"X-Forwarded-Host": "agents.example.com", "X-Forwarded-Proto": "https"}
        catalog = await catalog_of(url, headers=proxied)
        assert catalog["entries"][0]["url"] == PUBLIC + CARD
        bad = await ask(url, "GET", CATALOG, headers={"X-Forwarded-Host": "a/b"})
        assert bad.status == 400
        assert (await ask(url, "GET", "/robots.txt", headers={"Host": "a b"})).status == 400


async def test_a_mounted_app_names_the_address_of_its_mount():
    app = app_of([agent()])
    outer = Starlette(routes=[Mount("/agents", app)], lifespan=app.lifespan)
    async with serving(outer) as url:
        catalog = await catalog_of(url, f"/agents{CATALOG}")
        assert catalog["entries"][0]["url"] == f"{url}/agents/time-agent{CARD}"
        card = await ask(url, "GET", f"/agents/time-agent{CARD}")
        assert urljoin(f"{url}/agents/time-agent{CARD}", target(card)) == f"{url}/agents{CATALOG}"


# Tenants


async def test_tenants_are_catalogs_in_the_catalog():
    tenants = {"acme": agent("Shop"), "globex": agent("Help desk")}
    async with serving(app_of(agent(), tenants=tenants)) as url:
        catalog = await catalog_of(url)
        assert identifiers(catalog) == [
            "urn:air:example.com:agent:time-agent",
            "urn:air:example.com:agent:acme:catalog",
            "urn:air:example.com:agent:globex:catalog",
        ]
        acme = catalog["entries"][1]
        assert acme["type"] == "application/ai-catalog+json"
        assert acme["displayName"] == "acme"
        assert acme["url"] == f"{url}/acme{CATALOG}"
        nested = await catalog_of(url, acme["url"].removeprefix(url))
        assert identifiers(nested) == ["urn:air:example.com:agent:acme:shop"]
        address = nested["entries"][0]["url"]
        card = (await ask(url, "GET", address.removeprefix(url))).json
        assert card["name"] == "Shop"
        assert (await ask(url, "GET", f"/initech{CATALOG}")).status == 404


async def test_one_agent_of_several_tenants_has_an_identifier_for_each():
    shop = agent("Shop")
    async with serving(app_of(tenants={"acme": shop, "globex": shop})) as url:
        both = [
            identifiers(await catalog_of(url, f"/{name}{CATALOG}")) for name in ("acme", "globex")
        ]
        assert both == [
            ["urn:air:example.com:agent:acme:shop"],
            ["urn:air:example.com:agent:globex:shop"],
        ]


async def test_what_is_unlisted_is_in_no_catalog():
    agents = {"/": agent(), "/secret": agent("Secret project")}
    tenants = {"acme": agent("Shop"), "globex": agent("Merger")}
    app = app_of(agents, tenants=tenants, unlisted=["/secret/", "globex"])
    async with serving(app) as url:
        body = (await ask(url, "GET", CATALOG)).body
        assert identifiers(json.loads(body)) == [
            "urn:air:example.com:agent:time-agent",
            "urn:air:example.com:agent:acme:catalog",
        ]
        assert b"globex" not in body
        assert b"ecret" not in body
        assert (await ask(url, "GET", f"/globex{CATALOG}")).status == 404
        # It leaves out of the catalog, and hides nothing from those who know the address.
        assert (await ask(url, "GET", f"/secret{CARD}")).status == 200


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


# Without a publisher


async def test_without_a_publisher_there_is_no_catalog_and_the_log_says_why_once(caplog):
    app = parley.asgi([agent()])
    with caplog.at_level(logging.INFO, logger="parley.server"):
        async with serving(app) as url:
            for _ in range(3):
                response = await ask(url, "GET", CATALOG)
                assert response.status == 404
                assert "catalog" not in response.json
            assert (await ask(url, "GET", "/robots.txt")).status == 404
            for path in ("/", f"/time-agent{CARD}", "/time-agent/docs"):
                answer = await ask(url, "GET", path)
                assert "link" not in answer.headers
                assert b'rel="ard' not in answer.body
    said = [record.message for record in caplog.records if "catalog" in record.message]
    assert len(said) == 1
    assert "PARLEY_PUBLISHER" in said[0]


async def test_the_publisher_may_be_in_the_environment(monkeypatch):
    monkeypatch.setenv("PARLEY_PUBLISHER", "Example.ORG")
    monkeypatch.setenv("PARLEY_NAMESPACE", "shop")
    async with serving(parley.asgi(agent())) as url:
        assert identifiers(await catalog_of(url)) == ["urn:air:example.org:shop:time-agent"]
    async with serving(parley.asgi(agent(), publisher="example.com", namespace="x")) as url:
        assert identifiers(await catalog_of(url)) == ["urn:air:example.com:x:time-agent"]
    async with serving(parley.asgi(agent(), publisher="")) as url:
        assert (await ask(url, "GET", CATALOG)).status == 404


async def test_a_server_that_publishes_nothing_wraps_no_handler():
    """Nothing is done for a catalog in a request, but where somebody asks for it."""
    kinds = {type(handler).__name__ for handler in parley.asgi(agent())._routes._exact.values()}
    assert "LinkedPage" not in kinds
    assert "CatalogPage" not in kinds
    published = app_of()._routes._exact.values()
    assert {"LinkedPage", "CatalogPage"} <= {type(each).__name__ for each in published}


# Who sees it


async def test_a_catalog_is_for_those_who_see_cards():
    bank = agent("Bank", security=Bearer({"good": Caller(id="ada")}.get) | anonymous)
    tenants = {"acme": bank}
    settings = {"restrict": {"card": "authenticated"}}
    async with serving(app_of(bank, tenants=tenants, settings=settings)) as url:
        for path in (CATALOG, f"/acme{CATALOG}"):
            for given in ({}, {"authorization": "Bearer bad"}):
                refused = await ask(url, "GET", path, headers=given)
                assert refused.status == 401
                assert b"Bank" not in refused.body
                assert b"acme" not in refused.body
            seen = await ask(url, "GET", path, headers=TOKEN)
            assert seen.status == 200
            assert "public" not in seen.headers["cache-control"]
        # What all may see does not tell of it.
        assert (await ask(url, "GET", "/robots.txt")).status == 404
        for path in ("/", "/docs", CARD):
            answer = await ask(url, "GET", path)
            assert "link" not in answer.headers
            assert b"ai-catalog.json" not in answer.body
        assert "link" in (await ask(url, "GET", CARD, headers=TOKEN)).headers


async def test_elsewhere_there_is_no_catalog():
    settings = {"restrict": {"card": ELSEWHERE}}
    async with serving(app_of([agent()], settings=settings)) as url:
        for path in (CATALOG, "/robots.txt", "/", "/nowhere"):
            answer = await ask(url, "GET", path)
            assert b"agent-card" not in answer.body
            assert b'"catalog"' not in answer.body
        hidden, nothing = await ask(url, "GET", CATALOG), await ask(url, "GET", "/nowhere")
        assert hidden.status == nothing.status == 404
        assert hidden.headers.keys() == nothing.headers.keys()


async def test_a_catalog_shows_no_more_than_the_public_card():
    secret = Agent("Shop", description="Sells.", version="1.0.0")

    @secret.skill(tags=["open"], examples=["Sell me a chair", "And a table"])
    async def sell(text: str) -> str:
        """Sells."""
        return text

    @secret.skill(tags=["hidden-tag"], examples=["Open the vault"], listed="extended")
    async def open_vault(text: str) -> str:
        """Opens the vault."""
        return text

    options = {"caller": lambda scope: Caller(id="ada", authenticated=True)}
    async with serving(app_of(secret, tenants={"acme": secret}, **options)) as url:
        for path in (CATALOG, f"/acme{CATALOG}"):
            body = (await ask(url, "GET", path)).body
            assert b"vault" not in body
            assert b"hidden" not in body


async def test_a_worker_publishes_nothing():
    store = MemoryTaskStore(logs=MemoryLogs())
    app = parley.asgi(agent(), store=store, role="worker", publisher="example.com")
    async with serving(app) as url:
        for path in (CATALOG, "/robots.txt"):
            assert (await ask(url, "GET", path)).status == 503


# How it is served


async def test_a_catalog_may_be_cached_as_cards_are():
    async with serving(app_of()) as url:
        whole = await ask(url, "GET", CATALOG)
        assert whole.headers["content-type"] == "application/ai-catalog+json"
        assert whole.headers["cache-control"] == "public, max-age=60"
        assert whole.headers["vary"].startswith("Host")
        etag = whole.headers["etag"]
        assert etag.startswith('W/"')
        head = await ask(url, "HEAD", CATALOG)
        assert (head.status, head.body) == (200, b"")
        for name in ("content-length", "content-type", "etag", "last-modified", "cache-control"):
            assert head.headers[name] == whole.headers[name]
        for known in (etag, etag.removeprefix("W/"), f'"x", {etag}', "*"):
            fresh = await ask(url, "GET", CATALOG, headers={"If-None-Match": known})
            assert (fresh.status, fresh.body) == (304, b"")
            assert fresh.headers["etag"] == etag
        since = {"If-Modified-Since": whole.headers["last-modified"]}
        assert (await ask(url, "GET", CATALOG, headers=since)).status == 304
        stale = await ask(url, "GET", CATALOG, headers={"If-None-Match": '"x"'})
        assert stale.status == 200
        refused = await post(url, rpc(), path=CATALOG)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await post(url, rpc(), path="/robots.txt")).status == 405


async def test_replicas_and_restarts_agree_on_the_etag(tmp_path):
    keys = SigningKeys.parse(key_set())
    etags = set()
    for _ in range(2):
        page, _ = page_of(Clock(1_000_000 + len(etags) * 5_000), keys=keys)
        etags.add(header(await served(page), b"etag"))
    assert len(etags) == 1


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


def header(sent, name):
    return dict(sent[0]["headers"])[name]


async def test_catalogs_are_kept_for_a_bounded_number_of_addresses():
    clock = Clock()
    page, made = page_of(clock)
    await served(page)
    first = len(made)
    await served(page)
    assert len(made) == first  # kept
    for number in range(200):
        await served(page, f"h{number}.example")
    assert len(page._files) == 64
    await served(page)
    assert len(made) > 201 * first


async def test_the_time_of_an_entry_changes_only_with_what_it_says():
    clock, card = Clock(), card_of("Time")(())
    cards = [card]
    page, _ = page_of(clock, cards=cards)

    def updated(sent):
        return json.loads(sent[1]["body"])["entries"][0]["updatedAt"]

    first = await served(page)
    clock.now += 3600
    again = await served(page)
    assert updated(first) == updated(again) == "1970-01-12T13:46:40Z"
    assert header(first, b"etag") == header(again, b"etag")
    cards.append(card_of("Zones")(()))
    clock.now += 3600
    changed = await served(page)
    assert updated(changed) == "1970-01-12T15:46:40Z"
    assert header(changed, b"etag") != header(first, b"etag")


async def test_a_catalog_that_cannot_be_made_is_an_error_with_a_reference():
    def broken():
        raise RuntimeError("hunter2")

    advertised = AdvertisedInterfaces("", url=None, trust_proxy=False)
    item = CatalogItem("urn:air:example.com:agent:time", broken, advertised)
    page = CatalogPage([item], advertised, publisher="example.com", settings=Settings())
    sent = await served(page)
    assert sent[0]["status"] == 500
    assert b"hunter2" not in sent[1]["body"]


# Trust


def keys_of(document) -> KeySet:
    return KeySet(read_keys(document))


def verify(entry, keys: KeySet):
    """Return the header of an entry's signature, and whether it holds (AI Catalog)."""
    manifest = dict(entry["trustManifest"])
    protected, payload, signature = manifest.pop("signature").split(".")
    assert payload == ""
    header = json.loads(decode(protected))
    key = keys.find(header["kid"], header["alg"])
    assert key is not None
    content = encode(canonical(manifest)).encode()
    return header, key.verifies(
        header["alg"], protected.encode() + b"." + content, decode(signature)
    )


@pytest.mark.parametrize("alg", ["ES256", "EdDSA", "RS256"])
async def test_entries_are_signed_when_there_are_keys(alg):
    keys = SigningKeys.parse(key_set(private_jwk(alg, kid="one", state="current", alg=alg)))
    tenants = {"acme": agent("Shop")}
    app = app_of(agent(), tenants=tenants, url=PUBLIC, signing_keys=keys)
    async with serving(app) as url:
        published = keys_of((await ask(url, "GET", "/.well-known/jwks.json")).json)
        catalog = await catalog_of(url)
        catalogs = [catalog, await catalog_of(url, f"/acme{CATALOG}")]
    for entry in [entry for each in catalogs for entry in each["entries"]]:
        header, holds = verify(entry, published)
        assert holds
        assert header["jku"] == f"{PUBLIC}/.well-known/jwks.json"
        assert entry["trustManifest"]["provenance"][0]["sourceId"] == entry["identifier"]
    # A signature is of its own entry: in another one it does not hold.
    one, other = catalog["entries"]
    other["trustManifest"]["signature"] = one["trustManifest"]["signature"]
    assert not verify(other, published)[1]


async def test_entries_are_signed_without_an_address_and_no_request_has_a_say_in_it():
    keys = SigningKeys.parse(key_set())
    async with serving(app_of(signing_keys=keys)) as url:
        manifests = []
        for host in ("a.example", "b.example"):
            catalog = await catalog_of(url, headers={"Host": host})
            (entry,) = catalog["entries"]
            signed, holds = verify(entry, keys_of(keys.published))
            assert holds
            assert "jku" not in signed
            manifests.append({**entry["trustManifest"], "signature": ""})
        assert manifests[0] == manifests[1]


async def test_entries_are_signed_anew_when_the_keys_change(tmp_path):
    path = key_file(tmp_path / "keys.json", private_jwk(kid="old", state="current", alg="ES256"))
    keys = SigningKeys.from_file(path)
    page, _ = page_of(Clock(), keys=keys, url=PUBLIC)

    def kid(sent):
        signature = json.loads(sent[1]["body"])["entries"][0]["trustManifest"]["signature"]
        return json.loads(decode(signature.split(".")[0]))["kid"]

    first = await served(page)
    assert kid(first) == "old"
    key_file(path, private_jwk(kid="new", state="current", alg="ES256"))
    keys._next_look = 0.0
    second = await served(page)
    assert kid(second) == "new"
    assert header(first, b"etag") != header(second, b"etag")


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


# How it is found


def target(response):
    """Return the reference of the one link to a catalog."""
    (found,) = re.findall(r'<([^>]+)>; rel="ard ai-catalog"', response.headers["link"])
    return found


@pytest.mark.parametrize("url_option", [None, "https://agents.example.com/all/"])
async def test_cards_pages_and_the_root_lead_to_the_catalog(url_option):
    agents, tenants = {"/": agent(), "/a/b": agent("Clerk")}, {"acme": agent("Shop")}
    async with serving(app_of(agents, tenants=tenants, url=url_option)) as url:
        wanted = f"https://agents.example.com/all{CATALOG}" if url_option else url + CATALOG
        cards = ["", "/acme", "/a/b", "/a2a/time-agent", "/a2a/a-b", "/a2a/acme"]
        paths = [prefix + name for prefix in cards for name in (CARD, "/.well-known/agent.json")]
        docs = [f"{prefix}/docs" for prefix in cards]
        for path in ["/", *paths, *docs, f"{CARD}?tenant=acme"]:
            for method in ("GET", "HEAD"):
                response = await ask(url, method, path)
                assert urljoin(url + path, target(response)) == wanted, path
        for path in docs:
            page = (await ask(url, "GET", path)).body.decode()
            head = page[: page.index("</head>")]
            (href,) = re.findall(r'<link rel="ard ai-catalog"[^>]* href="([^"]+)">', head)
            assert urljoin(url + path, href) == wanted
        etag = (await ask(url, "GET", CARD)).headers["etag"]
        fresh = await ask(url, "GET", CARD, headers={"If-None-Match": etag})
        assert fresh.status == 304
        assert urljoin(url + CARD, target(fresh)) == wanted
        assert "link" not in (await post(url, rpc())).headers


async def test_a_page_with_a_link_runs_its_scripts_as_before():
    async with serving(app_of()) as linked, serving(parley.asgi(agent())) as plain:
        one, other = await ask(linked, "GET", "/docs"), await ask(plain, "GET", "/docs")
        assert one.headers["content-security-policy"] == other.headers["content-security-policy"]
        assert int(one.headers["content-length"]) == len(one.body) > len(other.body)
        head = await ask(linked, "HEAD", "/docs")
        assert head.headers["content-length"] == one.headers["content-length"]


async def test_an_address_with_characters_of_its_own_breaks_no_link():
    app = app_of(url='https://agents.example.com/a">b<c')
    async with serving(app) as url:
        link = (await ask(url, "GET", CARD)).headers["link"]
        assert link.startswith("<https://agents.example.com/a%22%3Eb%3Cc/.well-known/ard.json>")
        page = (await ask(url, "GET", "/docs")).body
        assert b'a">b' not in page


async def test_robots_txt_leads_to_the_catalog_and_forbids_nothing():
    async with serving(app_of()) as url:
        response = await ask(url, "GET", "/robots.txt")
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        lines = response.body.decode().splitlines()
        assert f"Agentmap: {url}{CATALOG}" in lines
        assert "Disallow:" in lines
        head = await ask(url, "HEAD", "/robots.txt")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == response.headers["content-length"]
    async with serving(app_of(url=PUBLIC)) as url:
        response = await ask(url, "GET", "/robots.txt")
        assert f"Agentmap: {PUBLIC}{CATALOG}\n".encode() in response.body
        assert "vary" not in response.headers


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
        # A path that somebody makes up is repeated in no header.
        assert "link" not in (await ask(url, "GET", "/x" * 200)).headers


async def test_the_card_of_a_sole_agent_is_for_those_who_see_it():
    bank = agent("Bank", security=Bearer({"good": Caller(id="ada")}.get) | anonymous)
    settings = {"restrict": {"card": "authenticated"}}
    async with serving(app_of({"/bank": bank}, settings=settings)) as url:
        refused = await ask(url, "GET", CARD)
        assert refused.status == 401
        assert b"Bank" not in refused.body
        assert (await ask(url, "GET", CARD, headers=TOKEN)).status == 200


async def test_what_is_published_can_be_read_by_our_own_reader():
    async with serving(app_of(agent(), tenants={"acme": agent("Shop")})) as url:
        body = (await ask(url, "GET", CATALOG)).body
    read = read_catalog(body)
    assert read.rejected == ()
    assert [entry.identifier for entry in read.catalog.entries] == identifiers(json.loads(body))
    assert all(entry.more == {} for entry in read.catalog.entries)
