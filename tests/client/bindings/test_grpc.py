"""The gRPC client: its requests, its results, and the meaning of each status."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from parley.client import RemoteAgent, connect
from parley.client.bindings.grpc import GrpcClientBinding, GrpcTarget
from parley.client.bindings.http import GrpcTls, HttpTransport
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    StreamCut,
    UnexpectedStatus,
    Unreachable,
    Untrusted,
)
from parley.client.retry import Retry
from parley.model.cards import AgentExtension
from parley.model.errors import (
    InvalidParamsError,
    InvalidRequestError,
    OverloadedError,
    PeerError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import (
    BY_NAME,
    GetTaskRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, StreamItem
from parley.model.tasks import TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.server.app import App
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from parley.wire.protobuf.errors import STATUS_KEY, write_status
from tests.kit.scripted import Scripted, Standstill, app_of, card_of, chunk, reply, task
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parents[1]
# An authority for these tests only, and its certificate and key for localhost.
AUTHORITY, SIGNED = HERE / "authority.pem", HERE / "signed.pem"
AT_ONCE = Retry(calls=2, streams=4, first=0.0, limit=0.0)
GET, GET_TASK = GetTaskRequest(id="t-1"), BY_NAME["GetTask"]
SUBSCRIBE = SubscribeToTaskRequest(id="t-1"), BY_NAME["SubscribeToTask"]
NUMBERED = card_of(extensions=(AgentExtension(uri=RESUMABLE_STREAMS),))
FINAL = TaskStatusUpdateEvent(
    task_id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.COMPLETED)
)


@asynccontextmanager
async def talk(
    service: Scripted, app: App | None = None, **options: Any
) -> AsyncIterator[RemoteAgent]:
    """A scripted agent on our server, and a gRPC connection to it."""
    app = app or app_of(service)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        wanted = {"binding": "GRPC", "retries": AT_ONCE, **options}
        async with connect(url, **wanted) as remote:
            yield remote


@asynccontextmanager
async def binding(url: str, **options: Any) -> AsyncIterator[GrpcClientBinding]:
    given = {name: options.pop(name) for name in ("insecure", "grpc_tls", "tls") if name in options}
    if "max_response" in options:
        given["max_response"] = options.pop("max_response")
    async with HttpTransport(connect_timeout=5, **given) as http:
        wanted: dict[str, Any] = {
            "dialect": versions.dialect("1.0"),
            "headers": {},
            "timeout": 5.0,
            "idle": 60.0,
            "numbered": False,
            **options,
        }
        made = GrpcClientBinding(http, url, **wanted)
        try:
            yield made
        finally:
            await made.aclose()


@asynccontextmanager
async def answering(answer: Any, **options: Any) -> AsyncIterator[GrpcClientBinding]:
    """A server of another implementation; the test gives GetTask and SubscribeToTask."""
    server = grpc.aio.server()
    handlers = {
        "GetTask": grpc.unary_unary_rpc_method_handler(answer),
        "SubscribeToTask": grpc.unary_stream_rpc_method_handler(answer),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("lf.a2a.v1.A2AService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with binding(f"127.0.0.1:{port}", **options) as made:
            yield made
    finally:
        await server.stop(None)


def ending(status: grpc.StatusCode, words: str, *trailing: tuple[str, str | bytes]) -> Any:
    async def answer(data: bytes, context: Any) -> bytes:
        await context.abort(status, words, trailing)
        return b""

    return answer


async def events(made: GrpcClientBinding) -> list[StreamItem]:
    request, operation = SUBSCRIBE
    return [item async for item in made.stream(operation, request, CallContext())]


# -- calls -------------------------------------------------------------------------------------


async def test_a_header_that_grpc_does_not_carry_is_told_by_its_name():
    service = Scripted()
    async with serving(app_of(service), grpc=GrpcOptions(port=0)) as url:
        async with connect(url, binding="GRPC") as remote:
            there = [remote.interface.url]
        for name, value in (("X-Team", "bl\u00fc"), ("X-Team", "a\tb"), ("X!Team", "blue")):
            options = {"headers": {name: value}, "trust_origins": there}
            with pytest.raises(
                ClientError, match=f"cannot carry the header {name.lower()}"
            ) as told:
                async with connect(url, binding="GRPC", **options) as remote:
                    await remote.get("t-1")
            assert value not in str(told.value)
        options = {"headers": {"X-Team-Bin": "bl\u00fc"}, "trust_origins": there}
        async with connect(url, binding="GRPC", **options) as remote:
            await remote.get("t-1")


# -- streams -----------------------------------------------------------------------------------


async def test_events_have_their_numbers_and_nothing_of_them_is_seen():
    async def stream(request, context):
        assert RESUMABLE_STREAMS in context.extensions
        yield StreamItem(task(), 1)
        yield StreamItem(chunk("a"), 2)
        yield StreamItem(FINAL, 3)

    service = Scripted(send_streaming_message=stream)
    async with (
        talk(service, app_of(service, card=NUMBERED)) as remote,
        remote.stream("hi") as items,
    ):
        got = [(items.seq, event) async for event in items]
    assert got == [(1, task()), (2, chunk("a")), (3, FINAL)]


async def test_leaving_a_stream_ends_it():
    still = Standstill(StreamItem(task(), 1))
    service = Scripted(subscribe_to_task=still)
    async with talk(service) as remote:
        async with remote.subscribe("t-1") as items:
            await anext(items)
        await asyncio.wait_for(still.closed.wait(), 5)


async def test_closing_the_connection_ends_its_calls():
    still = Standstill(StreamItem(task(), 1))
    begun = asyncio.Event()

    async def wait(request, context):
        begun.set()
        await asyncio.get_running_loop().create_future()

    service = Scripted(subscribe_to_task=still, get_task=wait)
    async with talk(service) as remote:
        call = asyncio.create_task(remote.get("t-1"))
        items = remote.subscribe("t-1")
        await anext(items)
        following = asyncio.create_task(anext(items))
        await asyncio.wait_for(begun.wait(), 5)
        await remote.aclose()
        for under_way in (call, following):
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(under_way, 5)
        with pytest.raises(ConnectionClosed):
            await remote.get("t-1")
        await asyncio.wait_for(still.closed.wait(), 5)


async def test_a_caller_that_is_cancelled_cancels_the_call():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request, context):
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with talk(Scripted(get_task=wait)) as remote:
        call = asyncio.create_task(remote.get("t-1"))
        await asyncio.wait_for(begun.wait(), 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(ended.wait(), 5)


# -- the end of a call -------------------------------------------------------------------------

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (ending(CODE.NOT_FOUND, "no"), TaskNotFoundError, "no"),
        (ending(CODE.UNIMPLEMENTED, "no streams"), UnsupportedOperationError, "no streams"),
        (ending(CODE.UNIMPLEMENTED, "Method not found!"), UnexpectedStatus, "does not have"),
        (ending(CODE.INVALID_ARGUMENT, "no"), InvalidParamsError, "no"),
        (ending(CODE.UNAVAILABLE, "no"), Disconnected, "broke: no"),
        (ending(CODE.INTERNAL, "Received RST_STREAM with error code 2"), Disconnected, "broke"),
        (ending(CODE.UNAUTHENTICATED, "no"), AuthenticationRequired, "wants credentials"),
        (ending(CODE.PERMISSION_DENIED, "no"), AuthenticationRequired, "rejects these"),
        (ending(CODE.RESOURCE_EXHAUSTED, "slow down"), OverloadedError, "slow down"),
        (ending(CODE.DATA_LOSS, "no"), PeerError, "no"),
        (
            # An old status table: the reason in the details decides.
            ending(CODE.UNIMPLEMENTED, "no", (STATUS_KEY, write_status(TaskNotFoundError("no")))),
            TaskNotFoundError,
            "no",
        ),
        (
            ending(
                CODE.UNAUTHENTICATED, "no", (STATUS_KEY, write_status(UnauthenticatedError("no")))
            ),
            UnauthenticatedError,
            "no",
        ),
    ],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["call", "stream"])
async def test_what_the_end_of_a_call_means(answer, kind, words, streaming):
    async with answering(answer) as made:
        with pytest.raises(kind, match=words) as refused:
            await (events(made) if streaming else made.call(GET_TASK, GET, CallContext()))
        assert type(refused.value) is kind


async def test_a_challenge_is_told():
    refusing = ending(CODE.UNAUTHENTICATED, "no", ("www-authenticate", 'Bearer realm="x"'))
    async with answering(refusing) as made:
        with pytest.raises(AuthenticationRequired) as refused:
            await made.call(GET_TASK, GET, CallContext())
    assert (refused.value.status, refused.value.challenge) == (401, 'Bearer realm="x"')


async def test_an_answer_that_is_too_large_is_not_held():
    async def large(data, context):
        return b"\x0a" + b"\xe8\x07" + b"x" * 1000

    async with answering(large, max_response=500) as made:
        with pytest.raises(ResponseTooLarge, match="500 bytes"):
            await made.call(GET_TASK, GET, CallContext())


async def test_a_request_that_the_server_finds_too_large_is_refused():
    from parley.server.app import Settings

    service = Scripted()
    app = app_of(service, settings=Settings(max_body_bytes=2000))
    async with talk(service, app) as remote:
        with pytest.raises(InvalidRequestError, match="larger than"):
            await remote.send("x" * 3000)


# -- connections -------------------------------------------------------------------------------


@pytest.fixture
def dead() -> Iterator[str]:
    """An address at which nobody listens, and nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def test_a_call_that_never_left_says_why(dead):
    async with binding(dead) as made:
        for _ in range(2):
            with pytest.raises(Unreachable, match="refused"):
                await made.call(GET_TASK, GET, CallContext())
        with pytest.raises(Unreachable):
            await events(made)


async def test_a_host_that_is_not_known_is_unreachable():
    async with binding("no-such-host.invalid:1", insecure=True) as made:
        with pytest.raises(Unreachable):
            await made.call(GET_TASK, GET, CallContext())


async def test_a_server_that_comes_back_is_found_again():
    service = Scripted()
    app = app_of(service)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        target = app.grpc.beside(url)
        port = int(target.rpartition(":")[2])
        async with binding(target) as made:
            assert await made.call(GET_TASK, GET, CallContext()) == task()
            app.grpc.port = None
    async with binding(target) as made:
        with pytest.raises(Unreachable):
            await made.call(GET_TASK, GET, CallContext())
        async with serving(app_of(service), grpc=GrpcOptions(port=port)):
            for _ in range(50):
                try:
                    assert await made.call(GET_TASK, GET, CallContext()) == task()
                    break
                except Unreachable:
                    await let_time_pass(0.1)
            else:
                raise AssertionError("not found again")


async def test_a_connection_that_breaks_in_a_call_may_have_done_it():
    begun = asyncio.Event()

    async def wait(data, context):
        begun.set()
        await asyncio.get_running_loop().create_future()

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(wait)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("lf.a2a.v1.A2AService", {"GetTask": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with binding(f"127.0.0.1:{port}") as made:
        call = asyncio.create_task(made.call(GET_TASK, GET, CallContext()))
        await asyncio.wait_for(begun.wait(), 5)
        await server.stop(None)
        with pytest.raises(Disconnected):
            await asyncio.wait_for(call, 5)


@pytest.mark.parametrize(
    ("url", "address", "secure"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051", False),
        ("localhost:50051", "localhost:50051", False),
        ("[::1]:50051", "[::1]:50051", False),
        ("agents.example:50051", "agents.example:50051", True),
        ("10.0.0.5:50051", "10.0.0.5:50051", True),
        ("agents.example:443", "agents.example:443", True),
        ("agents.example", "agents.example:443", True),
        ("http://agents.example:50051", "agents.example:50051", False),
        ("http://agents.example/path", "agents.example:80", False),
        ("https://127.0.0.1:50051", "127.0.0.1:50051", True),
        ("https://agents.example", "agents.example:443", True),
        ("https://me:secret@AGENTS.example.", "agents.example:443", True),
        ("https://bücher.example", "xn--bcher-kva.example:443", True),
    ],
)
def test_a_call_is_encrypted_unless_it_stays_here_or_the_address_says_not_to(url, address, secure):
    assert GrpcTarget.of(url) == GrpcTarget(address, secure)


def test_only_an_address_without_a_scheme_is_called_in_the_open_by_those_who_want_that():
    assert not GrpcTarget.of("agents.example:50051", insecure=True).secure
    assert GrpcTarget.of("https://agents.example", insecure=True).secure


@pytest.mark.parametrize(
    "url", ["", "ftp://x:1", "x:y", "x:70000", ":1", "exam%70le.com:1", "a\\b:1"]
)
def test_what_is_no_address_is_told(url):
    with pytest.raises(ClientError, match="not an address of the form host:port"):
        GrpcTarget.of(url)


@pytest.mark.parametrize("url", ["unix:1", "http://unix:1", "ipv4:1", "https://xds:1"])
async def test_a_host_is_a_host_whatever_grpc_calls_by_such_a_name(url, tmp_path, monkeypatch):
    """``unix:1`` is a socket of this machine to gRPC, and would be to a card's author."""
    monkeypatch.chdir(tmp_path)
    opened: list[bytes] = []

    async def heard(reader, writer):
        opened.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_unix_server(heard, tmp_path / "1")
    async with server, binding(url) as made:
        host = url.rpartition("/")[2]
        with pytest.raises(Unreachable, match=f"cannot connect to {host}: "):
            await made.call(GET_TASK, GET, CallContext())
    assert opened == []


# -- TLS ---------------------------------------------------------------------------------------

TLS = {"cert": SIGNED, "key": SIGNED}


@asynccontextmanager
async def encrypted(service: Scripted | None = None, **options: Any) -> AsyncIterator[str]:
    """The https address of a server with TLS."""
    app = app_of(service, identify=options.pop("identify", None))
    async with serving(app, grpc=GrpcOptions(port=0, **TLS, **options)) as url:
        yield "https://localhost:" + app.grpc.beside(url).rpartition(":")[2]


async def test_a_server_is_not_trusted_whose_authority_is_not():
    async with encrypted() as url, binding(url) as made:
        with pytest.raises(Untrusted, match="certificate"):
            await made.call(GET_TASK, GET, CallContext())


async def test_a_server_that_wants_certificates_knows_its_callers_by_them():
    scopes = []

    def identify(scope):
        from parley.model.service import Caller

        scopes.append(scope)
        return Caller(id=scope["extensions"]["tls"]["client_cert_name"], authenticated=True)

    service = Scripted()
    async with encrypted(service, client_ca=AUTHORITY, identify=identify) as url:
        async with binding(url, grpc_tls=GrpcTls(ca=AUTHORITY)) as made:
            with pytest.raises(Unreachable):
                await made.call(GET_TASK, GET, CallContext())
        async with binding(url, grpc_tls=GrpcTls(ca=AUTHORITY, **TLS)) as made:
            assert await made.call(GET_TASK, GET, CallContext()) == task()
    assert service.context.caller.id == "CN=parley signed"
    (scope,) = scopes
    assert scope["scheme"] == "https"
    assert scope["extensions"]["tls"]["client_cert_chain"][0].startswith("-----BEGIN CERTIFICATE")


def test_a_certificate_goes_with_its_key():
    with pytest.raises(ValueError, match="give both"):
        GrpcTls(cert=SIGNED)


# -- not installed -----------------------------------------------------------------------------


async def test_a_message_survives_a_server_that_restarts_between_calls():
    service = Scripted()
    app = app_of(service)
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))
    operation = BY_NAME["SendMessage"]
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        port = int(app.grpc.beside(url).rpartition(":")[2])
        made = binding(f"127.0.0.1:{port}")
        caller = await made.__aenter__()
        await caller.call(operation, SendMessageRequest(message=message), CallContext())
    async with serving(app, grpc=GrpcOptions(port=port)):
        for _ in range(50):
            try:
                answer = await caller.call(
                    operation, SendMessageRequest(message=message), CallContext()
                )
                break
            except (Unreachable, StreamCut):
                await let_time_pass(0.1)
        assert answer == reply()
        await made.__aexit__(None, None, None)
