"""gRPC, listening: both versions, what a call carries, and what it is refused with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress

import grpc
import pytest

import parley
from parley.model.errors import (
    ERRORS,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    OverloadedError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.operations import (
    BY_NAME,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, Caller
from parley.model.struct import A2AStruct
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.server.sockets import ListenError
from parley.wire import versions
from tests.kit.grpc import HI, Rpc, rpc_to
from tests.kit.scripted import EXTENSION, Scripted, app_of, card_of, extension, reply, task

pytestmark = pytest.mark.anyio

GET = GetTaskRequest(id="t-1")
SUBSCRIBE = SubscribeToTaskRequest(id="t-1")


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
    """A channel on which either version is spoken."""
    return Rpc(rpc.channel, request.param)


def raising(error: Exception):
    async def raise_it(request: A2AStruct, context: CallContext) -> None:
        raise error

    return raise_it


async def test_a_message_is_answered_in_either_version(either, service):
    assert await either.ask("SendMessage") == reply()
    assert service.asked[0].request.message == HI.message
    assert service.context.version == either.metadata[0][1]


async def test_a_task_is_answered_in_either_version(either):
    assert await either.ask("GetTask", GET) == task()
    assert await either.ask("CancelTask", CancelTaskRequest(id="t-1")) == task()


async def test_a_page_of_tasks_and_nothing_are_answered(rpc, service):
    page = await rpc.ask("ListTasks", ListTasksRequest(page_size=50))
    assert page.tasks == (task(),)
    service.script["delete_task_push_notification_config"] = lambda request, context: _empty()
    async with rpc_to(app_of(service, card=card_of(push_notifications=True))) as other:
        request = DeleteTaskPushNotificationConfigRequest(task_id="t-1", id="p")
        assert await other.ask("DeleteTaskPushNotificationConfig", request) == Empty()


async def _empty() -> Empty:
    return Empty()


async def test_the_version_is_echoed(either):
    call = either.start("SendMessage", HI, None)
    assert ("a2a-version", either.metadata[0][1]) in tuple(await call.initial_metadata())
    await call


@pytest.mark.parametrize(
    ("version", "metadata"),
    [
        ("1.0", ()),
        ("1.0", (("a2a-version", ""),)),
        ("1.0", (("a2a-version", "0.3"),)),
        ("1.0", (("a2a-version", "99.0"),)),
        ("0.3", (("a2a-version", "1.0"),)),
    ],
)
async def test_a_version_that_is_not_the_services_is_refused(rpc, version, metadata):
    refused = await Rpc(rpc.channel, version).refused("GetTask", GET, metadata)
    assert isinstance(refused.error, VersionNotSupportedError)
    assert refused.status == "FAILED_PRECONDITION"
    assert refused.error.metadata["supportedVersions"] == "1.0, 0.3"
    assert refused.initial["a2a-version"] == version


async def test_a_refusal_for_want_of_a_version_names_the_metadata_to_send(rpc):
    refused = await rpc.refused("GetTask", GET, ())
    assert "send the metadata a2a-version: 1.0" in refused.words


@pytest.mark.parametrize("metadata", [(), (("a2a-version", "0.3"),), (("a2a-version", "0.3.0"),)])
async def test_the_service_of_0_3_needs_no_version(rpc, metadata):
    assert await Rpc(rpc.channel, "0.3").ask("GetTask", GET, metadata) == task()


async def test_a_missing_version_is_the_services_own_where_the_server_is_told_so():
    async with rpc_to(app_of(settings=Settings(missing_version="1.0"))) as rpc:
        assert await rpc.ask("GetTask", GET, ()) == task()
        assert await Rpc(rpc.channel, "0.3").ask("GetTask", GET, ()) == task()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_every_error_is_its_status_with_details(rpc, service, kind):
    service.script["get_task"] = raising(kind("words", metadata={"taskId": "t-1"}, retry_after=2))
    refused = await rpc.refused("GetTask", GET)
    assert (refused.status, refused.words) == (kind.grpc_status, "words")
    assert type(refused.error) is kind
    assert refused.error.metadata == {"taskId": "t-1"}
    assert refused.error.retry_after == 2


async def test_fields_that_are_wrong_are_named(rpc, service):
    refused = await rpc.refused("GetTask", b"")
    assert isinstance(refused.error, InvalidParamsError)
    assert [violation.field for violation in refused.error.violations] == ["id"]
    assert isinstance((await rpc.refused("GetTask", b"\xff")).error, InvalidRequestError)
    assert service.asked == []


@pytest.mark.parametrize("name", ["GetTask", "SubscribeToTask"])
async def test_an_unforeseen_failure_is_a_reference_and_the_log_has_the_rest(
    rpc, service, caplog, name
):
    service.script["get_task"] = raising(ValueError("secret"))

    async def fail(request, context):
        raise ValueError("secret")
        yield

    service.script["subscribe_to_task"] = fail
    refused = await rpc.refused(name, GET if name == "GetTask" else SUBSCRIBE)
    assert isinstance(refused.error, InternalError)
    reference = refused.error.metadata["reference"]
    assert "secret" not in refused.words
    assert reference in caplog.text
    assert "secret" in caplog.text


async def test_a_cancellation_within_the_service_is_a_failure(rpc, service):
    service.script["get_task"] = raising(asyncio.CancelledError())
    assert isinstance((await rpc.refused("GetTask", GET)).error, InternalError)
    assert await rpc.ask("SendMessage") == reply()


async def test_what_the_card_does_not_declare_is_refused(rpc, service):
    asked = GetTaskPushNotificationConfigRequest(task_id="t-1", id="p")
    refused = await rpc.refused("GetTaskPushNotificationConfig", asked)
    assert isinstance(refused.error, PushNotificationNotSupportedError)
    refused = await rpc.refused("GetExtendedAgentCard", GetExtendedAgentCardRequest())
    assert isinstance(refused.error, UnsupportedOperationError)
    async with rpc_to(app_of(service, card=card_of(streaming=False))) as other:
        refused = await other.refused("SendStreamingMessage")
        assert isinstance(refused.error, UnsupportedOperationError)
    assert service.asked == []


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


async def test_a_method_that_there_is_not_is_unimplemented(rpc):
    call = rpc.channel.unary_unary("/lf.a2a.v1.A2AService/Nothing")(b"")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_that_is_too_large_is_refused():
    async with rpc_to(app_of(settings=Settings(max_body_bytes=2000))) as rpc:
        large = SendMessageRequest(
            message=Message(message_id="m", role=Role.USER, parts=(Part(text="x" * 3000),))
        )
        assert (await rpc.refused("SendMessage", large)).status == "RESOURCE_EXHAUSTED"
        assert await rpc.ask("SendMessage") == reply()


async def test_the_limits_of_the_server_hold(either, service):
    many = SendMessageRequest(
        message=Message(message_id="m", role=Role.USER, parts=(Part(text="x"),) * 3)
    )
    settings = Settings(max_parts=2, max_depth=10)
    async with rpc_to(app_of(service, settings=settings)) as rpc:
        limited = Rpc(rpc.channel, either.metadata[0][1])
        assert "more than 2 parts" in (await limited.refused("SendMessage", many)).words
        deep: object = 1
        for _ in range(10):
            deep = {"a": deep}
        nested = SendMessageRequest(message=HI.message, metadata={"x": deep})
        assert "more than 10 levels" in (await limited.refused("SendMessage", nested)).words


async def test_a_deadline_passes_as_a_ceiling_of_the_wait_does():
    agent = parley.Agent("Slow", description="Takes its time.")
    go_on = asyncio.Event()

    @agent.skill(tags=["slow"], replies="task")
    async def think(turn: parley.Turn) -> str:
        """Think for as long as it takes."""
        await go_on.wait()
        return "done"

    async with rpc_to(parley.asgi(agent)) as rpc:
        working = await rpc.ask("SendMessage", HI, timeout=4.0)
        assert not working.state.is_terminal
        go_on.set()
        async with rpc.stream(request=SubscribeToTaskRequest(id=working.id)) as stream:
            with suppress(grpc.aio.AioRpcError):  # it may have ended already
                await stream.rest()
        assert (await rpc.ask("GetTask", GetTaskRequest(id=working.id))).text == "done"


async def test_files_are_told_to_official_clients_of_0_3_as_they_read_them(service):
    file = b"\x89PNG"
    service.script["send_message"] = lambda request, context: _file(file)
    app = app_of(service)
    async with rpc_to(app) as rpc:
        target = app.grpc.beside("http://127.0.0.1")
        text = b"iVBORw=="
        for agent, content in (
            ("", text),  # grpc-python
            ("grpc-go/1.82.1", text),
            ("grpc-java-netty/1.81.0", text),
            ("other", file),
        ):
            options = [("grpc.primary_user_agent", agent)] if agent else []
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                old = Rpc(channel, "0.3")
                operation = BY_NAME["SendMessage"]
                data = await old.start("SendMessage", HI, None)
                assert content in data
                assert old.codec.read_result(operation, data).parts[0].raw == file
        assert await rpc.ask("SendMessage") == await _file(file)


async def _file(content: bytes) -> Message:
    part = Part(raw=content, media_type="image/png")
    return Message(message_id="r", role=Role.AGENT, parts=(part,))


# -- who calls ---------------------------------------------------------------------------------


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


# -- where agents are --------------------------------------------------------------------------


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


async def test_an_agent_alone_takes_any_tenant_wherever_it_is():
    async with rpc_to(create_app({"/time": Endpoint(_named("time"), card_of())})) as rpc:
        assert (await rpc.ask("SendMessage")).text == "time"
        acme = SendMessageRequest(tenant="acme", message=HI.message)
        assert (await rpc.ask("SendMessage", acme)).text == "time acme"


# -- listening ---------------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_told():
    async with serving(app_of(), grpc=GrpcOptions(port=0)) as url:
        app = app_of()
        async with serving(app, grpc=GrpcOptions(port=0)) as other:
            taken = int(app.grpc.beside(other).rpartition(":")[2])
            with pytest.raises(ListenError, match=f"port {taken}"):
                async with serving(app_of(), grpc=GrpcOptions(port=taken)):
                    pass
        assert url
    with pytest.raises(ListenError, match="no port"):
        async with serving(app_of(), grpc=GrpcOptions(port=70_000)):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cert": "a.pem"}, "give both"),
        ({"key": "a.pem"}, "give both"),
        ({"client_ca": "a.pem"}, "need TLS"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        GrpcOptions(port=0, **options)


async def test_a_certificate_that_cannot_be_read_is_told(tmp_path):
    nowhere = tmp_path / "nowhere.pem"
    with pytest.raises(ListenError, match=r"nowhere\.pem"):
        async with serving(app_of(), grpc=GrpcOptions(port=0, cert=nowhere, key=nowhere)):
            pass


async def test_an_overloaded_service_says_when_to_come_back(rpc, service):
    service.script["get_task"] = raising(OverloadedError("busy", retry_after=3))
    refused = await rpc.refused("GetTask", GET)
    assert (refused.status, refused.error.retry_after) == ("UNAVAILABLE", 3)


async def test_an_unknown_task_is_not_found(either, service):
    service.script["get_task"] = raising(TaskNotFoundError("no task t-1"))
    refused = await either.refused("GetTask", GET)
    assert (refused.status, refused.words) == ("NOT_FOUND", "no task t-1")


def test_serving_without_grpc_loads_nothing_of_it():
    script = (
        "import asyncio, sys, parley\n"
        "from parley.server.run import serving\n"
        "agent = parley.Agent('A', description='a')\n"
        "@agent.skill(tags=['a'])\n"
        "async def say(turn):\n"
        "    'Says it.'\n"
        "    return 'it'\n"
        "async def main():\n"
        "    async with serving(parley.asgi(agent)) as url, parley.connect(url) as remote:\n"
        "        assert (await remote.send('x')).text == 'it'\n"
        "asyncio.run(main())\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] in ('grpc', 'google')]\n"
        "raise SystemExit(', '.join(loaded) or None)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
