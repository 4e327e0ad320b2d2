"""The page for people: who gets it, and what else the same address answers."""

import base64
import gzip
import hashlib
import re

import msgspec
import pytest

from parley.model.cards import (
    AuthorizationCodeOAuthFlow,
    OAuth2SecurityScheme,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityScheme,
)
from parley.server.app import Endpoint, create_app
from parley.server.cards.pages import issuers_on
from parley.server.run import serving
from parley.server.settings import Settings
from tests.kit.http import JSON, ask, call
from tests.kit.scripted import Scripted, card_of

pytestmark = pytest.mark.anyio

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
PEOPLE = {"Accept": BROWSER}


def one(settings=None, **options):
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    endpoint = Endpoint(Scripted(), card_of("Noon"), tenants=tenants)
    return create_app({"": endpoint}, settings=settings or Settings(), **options)


def several(settings=None):
    agents = {"/time": card_of("Time"), "/a/b": card_of("Report")}
    endpoints = {path: Endpoint(Scripted(), card) for path, card in agents.items()}
    return create_app(endpoints, settings=settings or Settings())


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML;q=0.9, application/json;q=0.5", True),
        ("application/json, text/html;q=0.9", False),
        ("application/json, text/html", False),
        ("text/html;q=0", False),
        ("text/*", False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream", False),
        (None, False),
    ],
)
@pytest.mark.parametrize("app", [one, several], ids=["one agent", "several"])
async def test_the_root_is_a_page_for_who_prefers_html(app, accept, is_page):
    headers = {} if accept is None else {"Accept": accept}
    async with serving(app()) as url, serving(app(Settings(page=False))) as without:
        answer = await ask(url, "GET", "/", headers=headers)
        assert (answer.headers["content-type"] == "text/html; charset=utf-8") is is_page
        assert "Accept" in answer.headers["vary"].split(", ")
        plain = await ask(without, "GET", "/", headers=headers)
        assert plain.headers["content-type"] == "application/json"
        if not is_page:
            assert answer.status == plain.status
            assert answer.body.replace(url.encode(), b"") == plain.body.replace(
                without.encode(), b""
            )


@pytest.mark.parametrize("path", ["/", "/acme", "/acme/", "/a2a/acme", "/a2a/acme/"])
async def test_agents_tenants_and_assistants_have_pages(path):
    async with serving(one()) as url:
        answer = await ask(url, "GET", path, headers=PEOPLE)
        assert answer.status == 200
        assert b"<title>" in answer.body
        head = await ask(url, "HEAD", path, headers=PEOPLE)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == answer.headers["content-length"]
        posted = await ask(url, "POST", path, call(), {**JSON, **PEOPLE})
        assert posted.json["result"]["message"]["parts"] == [{"text": "It is noon."}]
        moved = await ask(url, "GET", f"{path.rstrip('/')}/docs")
        assert (moved.status, moved.headers["location"]) == (308, "./")


async def test_below_the_root_everything_is_as_before():
    async with serving(one()) as url:
        for path in ("/tasks", "/.well-known/agent-card.json", "/openapi.json", "/no/such"):
            answer = await ask(url, "GET", path, headers={**PEOPLE, "A2A-Version": "1.0"})
            assert "json" in answer.headers["content-type"]


async def test_the_page_of_a_server_names_the_paths_of_its_agents():
    async with serving(several()) as url:
        body = (await ask(url, "GET", "/", headers=PEOPLE)).body.decode()
        assert '<meta name="parley-agents" content="time a/b">' in body
        assert (
            "parley-agents"
            not in (
                (await ask(url, "GET", "/time", headers=PEOPLE))
                .body.decode()
                .partition("<style>")[0]
            )
        )
    both = {"": Endpoint(Scripted(), card_of("A")), "/b": Endpoint(Scripted(), card_of("B"))}
    async with serving(create_app(both)) as url:
        body = (await ask(url, "GET", "/", headers=PEOPLE)).body.decode()
        assert '<meta name="parley-others" content="b">' in body
    hidden = Settings(restrict={"card": ["192.0.2.0/24"]})
    async with serving(several(hidden)) as url:
        body = (await ask(url, "GET", "/", headers=PEOPLE)).body.decode()
        assert '<meta name="parley-agents" content="">' in body


async def test_the_policy_allows_what_is_in_the_page_and_nothing_else():
    async with serving(one()) as url:
        answer = await ask(url, "GET", "/", headers=PEOPLE)
    policy = dict(
        each.strip().split(" ", 1) if " " in each.strip() else (each.strip(), "")
        for each in answer.headers["content-security-policy"].split(";")
    )
    for tag in ("script", "style"):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
        assert not re.search(r"<script\b|<style\b", inside)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"


def card_with(*schemes):
    named = {str(number): each for number, each in enumerate(schemes)}
    return msgspec.structs.replace(card_of()(()), security_schemes=named)


def login(address):
    scheme = OpenIdConnectSecurityScheme(open_id_connect_url=address)
    return SecurityScheme(open_id_connect_security_scheme=scheme)


def code_flow(address):
    flow = AuthorizationCodeOAuthFlow(
        authorization_url="https://else.example/login", token_url=address, scopes={}
    )
    scheme = OAuth2SecurityScheme(flows=OAuthFlows(authorization_code=flow))
    return SecurityScheme(oauth2_security_scheme=scheme)


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("https://id.example.com/.well-known/x", "https://id.example.com"),
        ("https://id.example.com:8443/x", "https://id.example.com:8443"),
        ("http://127.0.0.1:9000/x", "http://127.0.0.1:9000"),
        ("http://[::1]:9000/x", "http://[::1]:9000"),
        ("http://localhost/x", "http://localhost"),
        ("http://id.example.com/x", None),
        ("javascript:alert(1)", None),
        ("https://a.example;script-src *", None),
        ("https://*/x", None),
        ("https://a b/x", None),
        ("https://u:p@id.example.com/x", "https://id.example.com"),
        ("https://id.example.com:x/", None),
        ("", None),
    ],
)
def test_the_page_may_ask_the_issuers_on_the_card(address, origin):
    for scheme in (login(address), code_flow(address)):
        assert issuers_on(card_with(scheme)) == (() if origin is None else (origin,))


async def test_the_page_is_compressed_small_and_read_once():
    async with serving(one()) as url:
        plain = await ask(url, "GET", "/", headers=PEOPLE)
        zipped = await ask(url, "GET", "/", headers={**PEOPLE, "Accept-Encoding": "br, gzip"})
        assert zipped.headers["content-encoding"] == "gzip"
        assert gzip.decompress(zipped.body) == plain.body
        assert len(zipped.body) <= 120 * 1024
        refused = await ask(url, "GET", "/", headers={**PEOPLE, "Accept-Encoding": "gzip;q=0"})
        assert "content-encoding" not in refused.headers
        assert plain.headers["etag"] != zipped.headers["etag"]
        again = await ask(
            url, "GET", "/", headers={**PEOPLE, "If-None-Match": plain.headers["etag"]}
        )
        assert (again.status, again.body) == (304, b"")


async def test_without_the_page_nothing_is_left_of_it():
    async with serving(one(Settings(page=False))) as url:
        assert (await ask(url, "GET", "/", headers=PEOPLE)).status == 405
        assert "vary" not in (await ask(url, "GET", "/", headers=PEOPLE)).headers
        assert (await ask(url, "GET", "/docs", headers=PEOPLE)).status == 404
        assert (await ask(url, "GET", "/openapi.json")).status == 200


@pytest.mark.parametrize("app", [one, several], ids=["one agent", "several"])
async def test_who_may_not_see_the_page_gets_the_answer_for_programs(app):
    elsewhere = Settings(restrict={"page": ["192.0.2.0/24"]})
    async with serving(app(elsewhere)) as url:
        answer = await ask(url, "GET", "/", headers=PEOPLE)
        assert answer.headers["content-type"] == "application/json"
        assert answer.status == (await ask(url, "GET", "/")).status
    here = Settings(restrict={"page": ["127.0.0.0/8"], "docs": ["192.0.2.0/24"]})
    async with serving(app(here)) as url:
        answer = await ask(url, "GET", "/", headers=PEOPLE)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "private, no-cache"
        assert (await ask(url, "GET", "/openapi.json")).status == 404
