"""A gRPC server: both versions, metadata of calls, and errors."""

from __future__ import annotations

import pytest

from parley.model.errors import UnauthenticatedError
from parley.model.operations import GetTaskRequest, SendMessageRequest
from parley.model.service import Caller
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.server.sockets import ListenError
from parley.wire import versions
from tests.kit.grpc import HI, Rpc, rpc_to
from tests.kit.scripted import EXTENSION, Scripted, app_of, card_of, extension, reply

pytestmark = pytest.mark.anyio

GET = GetTaskRequest(id="t-1")


@pytest.fixture(scope="module")
async def open_server():
    service = Scripted()
    card = card_of(extensions=(extension(),))
    async with rpc_to(app_of(service, card=card)) as rpc:
        yield service, rpc


@pytest.fixture
def service(open_server):
    open_server[0].forget()
    return open_server[0]


@pytest.fixture
def rpc(open_server, service):
    return open_server[1]


@pytest.fixture(params=versions.SUPPORTED_VERSIONS)
def either(request, rpc):
    """A channel that supports both versions."""
    return Rpc(rpc.channel, request.param)


async def test_a_refusal_for_want_of_a_version_names_the_metadata_to_send(rpc):
    refused = await rpc.refused("GetTask", GET, ())
    assert "send the metadata a2a-version: 1.0" in refused.words


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_service_parameters_are_told_to_the_service(rpc, service):
    metadata = (
        *rpc.metadata,
        ("traceparent", TRACE),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("last-event-id", "7"),
        ("a2a-extensions", f"urn:x, {EXTENSION}"),
    )
    call = rpc.start("GetTask", GET, metadata)
    await call
    context = service.context
    assert (context.trace.traceparent, context.last_event_id) == (TRACE, "7")
    assert context.trace.tracestate == "a=1,b=2"
    assert context.extensions == {EXTENSION}
    assert ("a2a-extensions", EXTENSION) in tuple(await call.initial_metadata())


async def test_extensions_are_echoed_under_the_versions_own_name(rpc, service):
    old = Rpc(rpc.channel, "0.3")
    call = old.start("GetTask", GET, (("x-a2a-extensions", EXTENSION),))
    await call
    assert service.context.extensions == {EXTENSION}
    assert ("x-a2a-extensions", EXTENSION) in tuple(await call.initial_metadata())


# -- caller identity -----------------------------------------------------------------------------


async def test_one_function_identifies_callers_over_http_and_grpc():
    scopes = []

    async def identify(scope):
        scopes.append(scope)
        token = dict(scope["headers"]).get(b"authorization", b"").decode()
        if not token:
            raise UnauthenticatedError("who are you?")
        return Caller(id=token.removeprefix("Bearer "), authenticated=True)

    service = Scripted()
    async with rpc_to(app_of(service, identify=identify)) as rpc:
        refused = await rpc.refused("GetTask", GET)
        assert isinstance(refused.error, UnauthenticatedError)
        assert refused.status == "UNAUTHENTICATED"
        assert refused.trailing["www-authenticate"] == "Bearer"
        await rpc.ask("GetTask", GET, (*rpc.metadata, ("authorization", "Bearer ann")))
    assert service.context.caller == Caller(id="ann", authenticated=True)
    scope = scopes[-1]
    assert (scope["type"], scope["scheme"]) == ("grpc", "http")
    assert scope["path"] == "/lf.a2a.v1.A2AService/GetTask"
    assert scope["client"][0] == "127.0.0.1"
    assert scope["server"][0] == "127.0.0.1"
    assert (b"a2a-version", b"1.0") in scope["headers"]


# -- addresses of agents -------------------------------------------------------------------------


def _named(name: str) -> Scripted:
    async def answer(request, context):
        return reply(f"{name} {context.tenant}".strip())

    return Scripted(send_message=answer)


@pytest.mark.parametrize(
    ("tenant", "answer"),
    [
        ("", "root"),
        ("time", "time"),
        ("time/acme", "time acme"),
        ("timer", "root timer"),
        ("acme", "root acme"),
        ("a/b", "deep"),
        ("a/b/c", "deep c"),
        ("inner", "inner inner"),
    ],
)
async def test_the_tenant_says_which_of_several_agents_is_meant(several, tenant, answer):
    said = await several.ask("SendMessage", SendMessageRequest(tenant=tenant, message=HI.message))
    assert said.text == answer


@pytest.fixture(scope="module")
async def several():
    endpoints = {
        "/": Endpoint(
            _named("root"), card_of(), tenants={"inner": Endpoint(_named("inner"), card_of())}
        ),
        "/time": Endpoint(_named("time"), card_of()),
        "/a/b": Endpoint(_named("deep"), card_of()),
    }
    async with rpc_to(create_app(endpoints)) as rpc:
        yield rpc


async def test_an_agent_that_nobody_named_is_not_guessed():
    endpoints = {path: Endpoint(_named(path), card_of()) for path in ("/one", "/two")}
    async with rpc_to(create_app(endpoints)) as rpc:
        refused = await rpc.refused("SendMessage")
        assert "name the tenant" in refused.words
        unknown = SendMessageRequest(tenant="three", message=HI.message)
        refused = await rpc.refused("SendMessage", unknown)
        assert "there is no tenant 'three'" in refused.words
        assert refused.error.violations[0].field == "tenant"
        one = SendMessageRequest(tenant="one", message=HI.message)
        assert (await rpc.ask("SendMessage", one)).text == "/one"


# -- listening ---------------------------------------------------------------------------------


async def test_a_certificate_that_cannot_be_read_is_told(tmp_path):
    nowhere = tmp_path / "nowhere.pem"
    with pytest.raises(ListenError, match=r"nowhere\.pem"):
        async with serving(app_of(), grpc=GrpcOptions(port=0, cert=nowhere, key=nowhere)):
            pass
