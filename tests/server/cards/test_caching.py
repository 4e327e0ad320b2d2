"""Forms of one card, and what caches are told of them."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import parley
from parley import Agent, Caller, Turn
from parley.model.cards import AgentCard, AgentCardSignature
from parley.model.errors import OverloadedError, TaskNotFoundError, UnauthenticatedError
from parley.model.operations import (
    OPERATIONS,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.model.struct import encode
from parley.security import ApiKey, Bearer, anonymous
from parley.server.app import Endpoint, Settings, create_app
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.discovery import CardPage
from parley.server.run import serving
from parley.wire import versions
from tests.kit.http import MESSAGE, ask, call, connection
from tests.kit.scripted import Scripted, app_of, card_of
from tests.server.cards.shared_cache import SharedCache
from tests.server.cards.shared_cache import ask as shared_caches_ask

pytestmark = pytest.mark.anyio


CARD = "/.well-known/agent-card.json"
PARAMS = {
    "SendMessage": {"message": MESSAGE},
    "SendStreamingMessage": {"message": MESSAGE},
    "ListTasks": {},
    "GetExtendedAgentCard": {},
    "CreateTaskPushNotificationConfig": {"taskId": "t-1", "url": "https://h.example"},
    "GetTaskPushNotificationConfig": {"taskId": "t-1", "id": "p-1"},
    "ListTaskPushNotificationConfigs": {"taskId": "t-1"},
    "DeleteTaskPushNotificationConfig": {"taskId": "t-1", "id": "p-1"},
}
FAILURES = [None, TaskNotFoundError(), UnauthenticatedError(), OverloadedError(), RuntimeError()]


async def _config(request, context):
    return TaskPushNotificationConfig(id="p-1", task_id=request.task_id, url="https://h.example")


async def _configs(request, context):
    return ListTaskPushNotificationConfigsResponse()


async def _extended_card(request, context):
    return card_of("Extended", extended_agent_card=True)(())


SCRIPT = {
    "create_task_push_notification_config": _config,
    "get_task_push_notification_config": _config,
    "list_task_push_notification_configs": _configs,
    "get_extended_agent_card": _extended_card,
}


@pytest.fixture(scope="module")
async def whole():
    service = Scripted(**SCRIPT)
    card = card_of(push_notifications=True, extended_agent_card=True)
    settings = Settings(max_body_bytes=2000)
    async with serving(app_of(service, card=card, settings=settings)) as url:
        yield service, url


def failing(failure):
    async def fail(request, context):
        raise failure

    async def fail_streaming(request, context):
        raise failure
        yield

    return fail, fail_streaming


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_no_answer_of_an_operation_may_be_kept(whole, operation, failure, binding):
    service, url = whole
    service.forget()
    service.script.update(SCRIPT)
    if failure is not None:
        fail, fail_streaming = failing(failure)
        service.script[operation.method] = fail_streaming if operation.streaming else fail
    params = PARAMS.get(operation.name, {"id": "t-1"})
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    if binding == "JSONRPC":
        response = await ask(url, "POST", "/", call(operation.name, params), headers)
    else:
        path = operation.path.replace("{id}", params.get("id", "")).replace("{task_id}", "t-1")
        body = json.dumps(params).encode() if operation.verb == "POST" else b""
        response = await ask(url, operation.verb, path, body, headers)
    assert len(service.asked) == 1
    # Once: two of it are joined by a comma.
    assert response.headers["cache-control"] == "no-store"


REFUSED = [
    ("POST", "/", b"{", {}),
    ("POST", "/", b" " * 3000, {}),
    ("POST", "/", call("Nothing"), {}),
    ("POST", "/", call(id=...), {}),
    ("POST", "/", call("GetTask"), {"A2A-Version": "9"}),
    ("POST", "/", call("tasks/get"), {"A2A-Version": "0.3"}),
    ("POST", "/", call(), {"Content-Type": "text/plain"}),
    ("GET", "/tasks/t-1/nothing", b"", {}),
    ("PUT", "/tasks/t-1", b"", {}),
    ("GET", "/tasks?pageSize=many", b"", {}),
    ("GET", "/tasks/t-1", b"", {"A2A-Version": "9"}),
    ("GET", "/v1/tasks/t-1", b"", {"A2A-Version": "0.3"}),
    ("POST", "/message:send", b"{", {}),
    ("POST", "/message:send", b" " * 3000, {}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), REFUSED)
async def test_no_refusal_may_be_kept(whole, method, path, body, headers):
    given = {"A2A-Version": "1.0", "Content-Type": "application/json", **headers}
    response = await ask(whole[1], method, path, body, given)
    assert response.headers["cache-control"] == "no-store"


async def test_a_process_without_agents_lets_nothing_be_kept():
    app = create_app({}, unavailable_message="nobody is here")
    async with serving(app) as url:
        for method, path, body in (("GET", "/tasks/t-1", b""), ("POST", "/", call())):
            response = await ask(url, method, path, body)
            assert (response.status, response.headers["cache-control"]) == (503, "no-store")


@pytest.mark.parametrize(
    ("settings", "url", "varies"),
    [
        (Settings(), None, "A2A-Version, Host"),
        (Settings(), "https://a.example", "A2A-Version"),
        (Settings(trust_proxy=True), "https://a.example", "A2A-Version"),
        (
            Settings(trust_proxy=True),
            None,
            "A2A-Version, Host, X-Forwarded-Host, X-Forwarded-Proto, X-Forwarded-Prefix",
        ),
    ],
)
async def test_a_card_names_the_headers_that_it_depends_on(settings, url, varies):
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    endpoint = Endpoint(Scripted(), card_of(), tenants=tenants)
    async with serving(create_app({"": endpoint}, settings=settings, url=url)) as at:
        for path in (CARD, f"/acme{CARD}", f"{CARD}?tenant=acme"):
            card = await ask(at, "GET", path)
            assert card.headers["vary"] == varies
            known = await ask(at, "GET", path, headers={"If-None-Match": card.headers["etag"]})
            assert (known.status, known.headers["vary"]) == (304, varies)
        document = await ask(at, "GET", "/openapi.json")
        assert document.headers.get("vary", "") == varies.removeprefix("A2A-Version").strip(", ")


async def test_what_a_card_depends_on_is_what_it_says():
    """Of all headers that a card could look at, those that change it are those in Vary."""
    other = {
        "Host": "localhost",
        "A2A-Version": "0.3",
        "X-Forwarded-Host": "b.example",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/b",
        "X-Forwarded-For": "10.0.0.9",
        "X-Forwarded-Ssl": "on",
        "Forwarded": "host=b.example;proto=https",
        "Accept": "text/html",
        "Authorization": "Bearer x",
        "User-Agent": "a2a-sdk/0.2",
    }
    for settings in (Settings(), Settings(trust_proxy=True)):
        async with serving(app_of(settings=settings)) as url, connection(url) as http:
            plain = await http.ask("GET", CARD)
            changing = [
                name
                for name, value in other.items()
                if (await http.ask("GET", CARD, b"", {name: value})).body != plain.body
            ]
            named = plain.headers["vary"].split(", ")
            assert sorted(changing) == sorted(named)
            assert versions.read_card(plain.json).name == "Scripted"


async def test_a_list_of_agents_names_the_headers_that_it_depends_on():
    async with serving(create_app({"/time": Endpoint(Scripted(), card_of())})) as url:
        for path in ("/", "/nowhere"):
            assert (await ask(url, "GET", path)).headers["vary"] == "Host"


async def test_an_app_that_another_server_runs_depends_on_who_says_the_scheme():
    app = app_of()
    outer = Starlette(routes=[Mount("/a", app=app)], lifespan=app.lifespan)
    async with serving(outer) as url:
        varies = (await ask(url, "GET", f"/a{CARD}")).headers["vary"]
        assert varies == (
            "A2A-Version, Host, X-Forwarded-Proto, X-Forwarded-Protocol, X-Forwarded-Ssl, Forwarded"
        )


# -- no cache gives the card of one caller to another, whatever it may keep by RFC 9111 ------------


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS = {digest("k-ada"): Caller(id="ada"), digest("k-eve"): Caller(id="eve")}
in_header = ApiKey("header", "X-Key", name="header", keys=KEYS)
in_cookie = ApiKey("cookie", "sid", name="cookie", keys=KEYS)
in_query = ApiKey("query", "key", name="query", keys=KEYS)
token = Bearer(lambda text: Caller(id=text) if text in ("ada", "eve") else None)

CALLERS: list[tuple[dict[str, str], str]] = [
    ({"Authorization": "Bearer ada"}, ""),
    ({"Authorization": "Bearer eve"}, ""),
    ({}, ""),
    ({"X-Key": "k-ada"}, ""),
    ({"X-Key": "k-eve"}, ""),
    ({"Cookie": "sid=k-ada"}, ""),
    ({"Cookie": "sid=k-eve"}, ""),
    ({}, "key=k-ada"),
    ({}, "key=k-eve"),
    ({"Authorization": "Bearer wrong"}, ""),
]
GETS = [
    "/",
    "/nothing",
    "/.well-known/agent-card.json",
    "/.well-known/agent.json",
    "/openapi.json",
    "/docs",
    "/extendedAgentCard",
    "/v1/card",
    "/v1/extendedAgentCard",
    "/a2a/cautious/.well-known/agent-card.json",
]
VERSIONS = [{}, {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}]


def make_agent() -> Agent:
    agent = Agent("Cautious", security=token | in_header | in_cookie | in_query | anonymous)

    @agent.skill
    async def hello(turn: Turn) -> str:
        return "hello"

    @agent.skill(listed=lambda caller: caller.id == "ada")
    async def garden(turn: Turn) -> str:
        return "roses"

    @agent.extended_card
    def extended(caller: Caller) -> dict[str, Any]:
        return {"description": f"the card of {caller.id}"}

    return agent


AUTHENTICATED = {"card": "authenticated", "docs": "authenticated"}


def settings(**restrict: Any) -> dict[str, Any]:
    return {"settings": Settings(restrict=restrict, auth_failures_per_minute=0)}


APPS = {
    "open": settings(),
    "restricted": settings(**AUTHENTICATED),
    "by network": settings(card=["192.0.2.0/24"]),
}


@pytest.mark.parametrize("options", APPS.values(), ids=APPS)
async def test_each_caller_gets_their_own_answer_through_a_cache(options: Any) -> None:
    app = parley.asgi(make_agent(), url="https://agents.example/", **options)
    async with app.lifespan():
        cache = SharedCache(app)
        for target, version, _ in itertools.product(GETS, VERSIONS, range(2)):
            for credentials, query in CALLERS:
                headers = {**credentials, **version}
                where = f"{target}?{query}" if query else target
                through = await cache.ask("GET", where, headers)
                direct = await shared_caches_ask(app, "GET", where, headers)
                said = (target, version, credentials, query)
                assert _without_reference(through) == _without_reference(direct), said
                if "ada" not in str(credentials) + query:
                    assert b"garden" not in through.body, said
        assert cache.hits


def _without_reference(answer: Any) -> Any:
    return answer.status, answer.body


RPC = {"1.0": ("GetExtendedAgentCard", {}), "0.3": ("agent/getAuthenticatedExtendedCard", {})}


@pytest.mark.parametrize("version", RPC)
async def test_an_extended_card_says_that_it_is_for_one_caller(version: str) -> None:
    app = parley.asgi(make_agent(), url="https://agents.example/")
    method, params = RPC[version]
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        **({} if params is None else {"params": {}}),
    }
    paths = {"1.0": "/extendedAgentCard", "0.3": "/v1/card"}
    headers = {
        "Authorization": "Bearer ada",
        "A2A-Version": version,
        "Content-Type": "application/json",
    }
    async with app.lifespan():
        rpc = await shared_caches_ask(app, "POST", "/", headers, json.dumps(call).encode())
        rest = await shared_caches_ask(app, "GET", paths[version], headers)
    for answer in (rpc, rest):
        assert answer.status == 200
        assert b"the card of ada" in answer.body
        assert b"garden" in answer.body
        assert answer.values("cache-control") == ["no-store"]
        assert {"authorization", "x-key", "cookie", "a2a-version"} <= set(answer.values("vary"))


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/openapi.json"])
async def test_what_only_some_may_see_is_private(path: str) -> None:
    app = parley.asgi(make_agent(), url="https://agents.example/", **APPS["restricted"])
    async with app.lifespan():
        answer = await shared_caches_ask(app, "GET", path, {"Authorization": "Bearer ada"})
        assert answer.status == 200
        assert "private" in answer.values("cache-control")
        assert {"authorization", "x-key", "cookie"} <= set(answer.values("vary"))
        tag = dict(answer.headers).get("etag")
        if tag:
            headers = {"Authorization": "Bearer ada", "If-None-Match": tag}
            again = await shared_caches_ask(app, "GET", path, headers)
            assert again.status == 304
            assert "private" in again.values("cache-control")
            assert (await shared_caches_ask(app, "GET", path, {"If-None-Match": tag})).status == 401


def test_the_cache_of_these_tests_keeps_what_it_may() -> None:
    """A cache that kept nothing would pass every test above."""
    from tests.server.cards.shared_cache import Answer, _may_store

    def may(request: dict[str, str], **headers: str) -> bool:
        return _may_store("GET", request, Answer(200, list(headers.items()), b""))

    assert may({})
    assert may({"authorization": "x"}, **{"cache-control": "public, max-age=60"})
    assert not may({"authorization": "x"}, **{"cache-control": "max-age=60"})
    assert not may({}, **{"cache-control": "private, max-age=60"})
    assert not may({}, **{"cache-control": "no-store"})


# -- one agent card in several forms: for all versions at once, or exactly for one -----------------


OLD = {"url", "preferredTransport", "protocolVersion"}
EXACT = {member for member in AgentCard.__struct_encode_fields__}
FORMS = [
    ({}, "", "merged"),
    ({"A2A-Version": ""}, "", "merged"),
    ({"A2A-Version": "1.0"}, "", "1.0"),
    ({"A2A-Version": "1.0.3"}, "", "1.0"),
    ({"A2A-Version": " 1.0 "}, "", "1.0"),
    ({"A2A-Version": "1.2"}, "", "1.0"),
    ({}, "?A2A-Version=1.0", "1.0"),
    ({}, "?a2a-version=1.0", "1.0"),
    ({"A2A-Version": "0.3"}, "?A2A-Version=1.0", "0.3"),
    ({"A2A-Version": "0.3.0"}, "", "0.3"),
    # The card is where its reader finds out which versions are spoken.
    ({"A2A-Version": "7.5"}, "", "merged"),
    ({"A2A-Version": "nonsense"}, "", "merged"),
]


def form_of(card):
    """Which form a card has, by its members."""
    members = set(card)
    if members >= OLD:
        return "merged" if "supportedInterfaces" in members else "0.3"
    return "1.0" if members <= EXACT and "supportedInterfaces" in members else "neither"


def signed(interfaces):
    signature = AgentCardSignature(protected="eyJhbGciOiJFUzI1NiJ9", signature="c2lnbmVk")
    return msgspec.structs.replace(card_of()(interfaces), signatures=(signature,))


@pytest.fixture(scope="module")
async def both():
    async with serving(app_of()) as url:
        yield url


@pytest.mark.parametrize(("headers", "query", "form"), FORMS)
async def test_the_form_of_a_card_is_that_of_the_version_that_is_asked_for(
    both, headers, query, form
):
    response = await ask(both, "GET", CARD + query, headers=headers)
    assert response.status == 200
    assert form_of(response.json) == form


async def test_caches_tell_the_forms_apart(both):
    tags = set()
    for headers in ({}, {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}):
        response = await ask(both, "GET", CARD, headers=headers)
        assert "A2A-Version" in response.headers["vary"]
        tag = response.headers["etag"]
        tags.add(tag)
        known = await ask(both, "GET", CARD, headers={**headers, "If-None-Match": tag})
        assert known.status == 304
        head = await ask(both, "HEAD", CARD, headers=headers)
        assert (head.status, head.headers["etag"]) == (200, tag)
        assert head.headers["content-length"] == str(len(response.body))
    assert len(tags) == 3


async def test_a_server_can_be_told_to_have_exact_cards_alone():
    async with serving(app_of(settings=Settings(card="1.0"))) as url:
        for headers in ({}, {"A2A-Version": "1.0"}, {"A2A-Version": "7.5"}):
            assert form_of((await ask(url, "GET", CARD, headers=headers)).json) == "1.0"
        old = await ask(url, "GET", CARD, headers={"A2A-Version": "0.3"})
        assert form_of(old.json) == "0.3"


async def test_nothing_is_put_into_a_card_that_was_signed():
    async with serving(create_app({"": Endpoint(Scripted(), signed)})) as url:
        plain = await ask(url, "GET", CARD)
        exact = await ask(url, "GET", CARD, headers={"A2A-Version": "1.0"})
        assert plain.body == exact.body
        assert form_of(plain.json) == "1.0"
        assert plain.json["signatures"]
        # What was signed is not what is said in another version.
        old = await ask(url, "GET", CARD, headers={"A2A-Version": "0.3"})
        assert form_of(old.json) == "0.3"
        assert "signatures" not in old.json


async def test_the_exact_card_is_the_data_model_and_nothing_else(both):
    exact = await ask(both, "GET", CARD, headers={"A2A-Version": "1.0"})
    advertised = AdvertisedInterfaces("", url=both, trust_proxy=False)
    assert exact.body == encode(card_of()(advertised.interfaces_at(advertised.url)))


def test_interfaces_name_all_supported_versions_newest_first():
    advertised = AdvertisedInterfaces("", url=None, trust_proxy=False, tenants={"acme"})
    interfaces = advertised.interfaces_at("https://a.example/x/")
    versions = [each.protocol_version for each in interfaces]
    assert versions == sorted(versions, reverse=True)
    assert (interfaces[0].protocol_binding, interfaces[0].protocol_version) == ("JSONRPC", "1.0")
    for each in interfaces:
        is_rpc = each.protocol_binding == "JSONRPC"
        assert each.url == ("https://a.example/x/" if is_rpc else "https://a.example/x")
        assert each.tenant == ""
    for each in advertised.interfaces_at("https://a.example/x", "acme"):
        if each.protocol_version == "0.3":
            assert (each.url, each.tenant) == ("https://a.example/x/acme", "")
        else:
            assert (each.url, each.tenant) == ("https://a.example/x", "acme")
    # A tenant without a path cannot be reached by those who cannot name it.
    unknown = advertised.interfaces_at("https://a.example/x", "initech")
    assert {each.protocol_version for each in unknown} == {"1.0"}


async def test_all_forms_of_all_addresses_share_one_bound(both):
    page = CardPage(
        Endpoint(Scripted(), card_of()),
        AdvertisedInterfaces("", url=None, trust_proxy=False),
        settings=Settings(),
    )

    async def send(message):
        pass

    for number in range(100):
        for version in (b"", b"1.0", b"0.3"):
            headers = [(b"host", b"h%d.example" % number), (b"a2a-version", version)]
            scope = {"type": "http", "method": "GET", "scheme": "http", "path": CARD}
            await page({**scope, "query_string": b"", "headers": headers}, None, send)
    assert len(page._files) == 64
