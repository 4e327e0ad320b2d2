"""One interface of an agent, asked by server checks, and its exchanges as they were on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from parley.client.bindings.binding import binding_class
from parley.client.bindings.http import Body, HttpTransport, OpenResponse, redacted
from parley.client.errors import ClientError, Disconnected
from parley.conformance.verdicts import ConformanceViolation, NotApplicable
from parley.model.cards import AgentCard, AgentInterface
from parley.model.errors import A2AError, an
from parley.model.operations import (
    BY_NAME,
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext
from parley.model.struct import A2AStruct
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent
from parley.wire import versions

SHOWN = 700
"""The characters of a body that evidence shows."""


class WireExchange(msgspec.Struct, kw_only=True):
    """A request over HTTP and what came back."""

    method: str
    url: str
    sent: bytes = b""
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body as JSON, ``None`` if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def media_type(self) -> str:
        """The media type of the answer, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def __str__(self) -> str:
        lines = [f"{self.method} {redacted(self.url)}"]
        if self.sent:
            lines.append(_shortened(self.sent))
        lines.append(f"{self.status or 'no answer'} {self.headers.get('content-type', '')}".strip())
        if self.body:
            lines.append(_shortened(self.body))
        return "\n".join(lines)


class LoggedTransport(HttpTransport):
    """An HTTP transport that keeps its latest exchanges."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last: WireExchange | None = None

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[OpenResponse]:
        """Send a request and yield the response, and keep both."""
        sent = body if isinstance(body, bytes) else b""
        exchange = self.last = WireExchange(method=method, url=url, sent=sent)
        async with super().open(method, url, headers, body, timeout=timeout, idle=idle) as answer:
            exchange.status = answer.status
            exchange.headers = dict(answer.headers)
            yield _Logged(answer, exchange)


class _Logged(OpenResponse):
    def __init__(self, real: OpenResponse, exchange: WireExchange) -> None:
        super().__init__(real.status, real.url, real.headers.items(), limit=real._limit)
        self._real = real
        self._exchange = exchange

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        async for chunk in self._real.chunks():
            self._exchange.body += chunk
            yield chunk


def _shortened(data: bytes) -> str:
    text = data[: 4 * SHOWN].decode("utf-8", "replace")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(data):,} bytes)"


MISSING_TASK = "there-is-no-such-task"


class ProbedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent under test is told: any message, and those with a known outcome.

    ``task`` makes it work on a task to the end, ``ask`` makes it ask for more, ``slow`` makes it
    work for some seconds. Without one, ``text`` is tried for it.
    """

    text: str = "Hello"
    task: str = ""
    ask: str = ""
    slow: str = ""


class Said(NamedTuple):
    """The answer to a call: a value, or the error in its place. ``wire`` is none over gRPC."""

    operation: str
    value: Any = None
    error: Exception | None = None
    wire: WireExchange | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the agent answered with an error of the protocol."""
        return isinstance(self.error, A2AError)

    def given(self) -> Any:
        """Return the value. Raises ``ConformanceViolation`` for an error."""
        if self.error is not None:
            raise ConformanceViolation(f"{self.operation} was answered with {named(self.error)}")
        return self.value

    def refused_with(self, *kinds: type[A2AError], why: str) -> A2AError:
        """Return the error. Raises ``ConformanceViolation`` for another, and for success."""
        wanted = " or ".join(f"{kind.__name__} ({kind.code})" for kind in kinds)
        if self.error is None:
            kind = type(self.value).__name__
            raise ConformanceViolation(
                f"{self.operation} {why} was answered with {an(kind)}, not with {wanted}"
            )
        if not isinstance(self.error, kinds):
            raise ConformanceViolation(
                f"{self.operation} {why} was answered with {named(self.error)}, not with {wanted}"
            )
        # Readers go by the reason of an error, where it has one; the code has to be right too.
        answer = self.wire.json if self.wire is not None else None
        said = answer.get("error") if isinstance(answer, dict) and "jsonrpc" in answer else None
        if isinstance(said, dict) and said.get("code") not in {kind.code for kind in kinds}:
            raise ConformanceViolation(
                f"{self.operation} {why} was answered with the code {said.get('code')!r}, not with "
                f"{wanted}"
            )
        return self.error

    def refused(self, *, why: str) -> Exception:
        """Return the error, whichever it is. Raises ``ConformanceViolation`` without one."""
        if self.error is None:
            kind = type(self.value).__name__
            raise ConformanceViolation(
                f"{self.operation} {why} was answered with {an(kind)}, not with an error"
            )
        if isinstance(self.error, Disconnected):
            raise ConformanceViolation(f"{self.operation} {why} was not answered: {self.error}")
        return self.error


class Streamed(NamedTuple):
    """The events of a stream until it ended, and the error that it ended with."""

    events: tuple[Event, ...]
    error: Exception | None
    wire: WireExchange | None
    closed: bool

    def given(self) -> tuple[Event, ...]:
        """Return the events. Raises ``ConformanceViolation`` for an error, and for no events."""
        if self.error is not None:
            raise ConformanceViolation(f"the stream was answered with {named(self.error)}")
        if not self.events:
            raise ConformanceViolation("the stream ended without an event")
        return self.events


class Probe:
    """Asks one interface of an agent.

    ``raw_card`` is the card as it came, ``patience`` how many seconds an answer may take.
    """

    def __init__(
        self,
        http: LoggedTransport,
        card: AgentCard,
        interface: AgentInterface,
        binding: str,
        version: str,
        *,
        headers: Mapping[str, str],
        texts: ProbedTexts,
        patience: float,
    ) -> None:
        self.http = http
        self.card = card
        self.interface = interface
        self.binding = binding
        self.version = version
        self.headers = dict(headers)
        self.texts = texts
        self.patience = patience
        self.dialect = versions.dialect(version)
        self._caller = binding_class(binding)(
            http,
            interface.url,
            dialect=self.dialect,
            headers=self.headers,
            timeout=patience,
            idle=patience,
            numbered=False,
        )
        self._finished: Task | None = None
        self._left: set[str] = set()

    @property
    def where(self) -> str:
        """The interface, as reports name it."""
        return f"{self.binding} {self.version}"

    @property
    def is_http(self) -> bool:
        """Whether exchanges can be read as they were on the wire."""
        return self.binding != "GRPC"

    async def aclose(self) -> None:
        """Cancel the tasks that checks left at work, as far as that goes; close the connection."""
        try:
            async with asyncio.timeout(self.patience):
                await asyncio.gather(*map(self._cancel, self._left), return_exceptions=True)
        except TimeoutError:
            pass  # the agent under test need not be able to
        finally:
            await self._caller.aclose()

    async def _cancel(self, task_id: str) -> None:
        request = self._with_tenant(CancelTaskRequest(id=task_id))
        await self._caller.call(BY_NAME["CancelTask"], request, CallContext())

    # -- calls ---------------------------------------------------------------------------------

    async def call(self, operation: str, request: A2AStruct, *extensions: str) -> Said:
        """Do an operation once."""
        request = self._with_tenant(request)
        context = CallContext(extensions=frozenset(extensions))
        self.http.last = None
        try:
            async with asyncio.timeout(self.patience):
                value = await self._caller.call(BY_NAME[operation], request, context)
        except TimeoutError:
            raise ConformanceViolation(
                f"{operation} was not answered within {self.patience:g} s"
            ) from None
        except (A2AError, ClientError) as error:
            return Said(operation, None, error, self.http.last)
        self._note(value)
        return Said(operation, value, None, self.http.last)

    async def send(self, text: str | None = None, **options: Any) -> Said:
        """Send a message: see ``message`` for the options."""
        return await self.call("SendMessage", self.message(text, **options))

    async def get(self, id: str, history: int | None = None) -> Said:
        """Get a task."""
        return await self.call("GetTask", GetTaskRequest(id=id, history_length=history))

    async def stream(self, text: str | None = None, **options: Any) -> Streamed:
        """Send a message and read the stream to its end."""
        return await self._read("SendStreamingMessage", self.message(text, **options))

    async def subscribe(self, id: str, *, events: int = 0) -> Streamed:
        """Subscribe to a task, to the end of the stream or for so many events."""
        return await self._read("SubscribeToTask", SubscribeToTaskRequest(id=id), events)

    async def _read(self, operation: str, request: A2AStruct, most: int = 0) -> Streamed:
        if not self.card.capabilities.streaming:
            raise NotApplicable("the card does not declare capabilities.streaming")
        request = self._with_tenant(request)
        self.http.last = None
        found: list[Event] = []
        source = self._caller.stream(BY_NAME[operation], request, CallContext())
        try:
            async with asyncio.timeout(self.patience), aclosing(source) as items:
                async for item in items:
                    found.append(item.event)
                    self._note(item.event)
                    if most and len(found) >= most:
                        return Streamed(tuple(found), None, self.http.last, closed=False)
        except TimeoutError:
            return Streamed(tuple(found), None, self.http.last, closed=False)
        except (A2AError, ClientError) as error:
            return Streamed(tuple(found), error, self.http.last, closed=True)
        return Streamed(tuple(found), None, self.http.last, closed=True)

    def _note(self, answer: Any) -> None:
        """Note the task of an answer as long as it has not ended."""
        if isinstance(answer, Task | TaskStatusUpdateEvent):
            task_id = answer.id if isinstance(answer, Task) else answer.task_id
            change = self._left.discard if answer.status.state.is_terminal else self._left.add
            change(task_id)

    def message(
        self,
        text: str | None = None,
        *,
        task: str = "",
        context: str = "",
        at_once: bool = False,
        history: int | None = None,
    ) -> SendMessageRequest:
        """Return the request for a message."""
        part = Part(text=self.texts.text if text is None else text)
        said = Message(
            message_id=uuid4().hex, role=Role.USER, parts=(part,), task_id=task, context_id=context
        )
        how = SendMessageConfiguration(return_immediately=at_once, history_length=history)
        return SendMessageRequest(message=said, configuration=how)

    def _with_tenant(self, request: A2AStruct) -> A2AStruct:
        if self.interface.tenant and hasattr(request, "tenant"):
            return msgspec.structs.replace(request, tenant=self.interface.tenant)
        return request

    # -- bytes ---------------------------------------------------------------------------------

    async def post(
        self, body: bytes, *, path: str = "", headers: Mapping[str, str] = {}
    ) -> WireExchange:
        """Post bytes to the interface, and return what came."""
        given = {
            "Content-Type": "application/json",
            "A2A-Version": self.version,
            **self.headers,
            **headers,
        }
        url = self.interface.url if not path else self.interface.url.rstrip("/") + path
        try:
            await self.http.send("POST", url, given, body, timeout=self.patience)
        except ClientError as error:
            raise ConformanceViolation(f"POST {path or '/'} was not answered: {error}") from None
        assert self.http.last is not None
        return self.http.last

    async def rpc(self, method: str, params: Any, **more: Any) -> WireExchange:
        """Post a JSON-RPC call that may be wrong."""
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}
        return await self.post(json.dumps(call).encode())

    # -- tasks in a known state ----------------------------------------------------------------

    async def finished(self) -> Task:
        """Return a task that has ended; the same one for all checks of the interface."""
        if self._finished is None:
            said = await self.send(self.texts.task or self.texts.text)
            value = said.given()
            if not isinstance(value, Task):
                raise NotApplicable(
                    "the agent answers directly; --task names a text that makes a task"
                )
            until = asyncio.get_running_loop().time() + self.patience
            while not value.state.is_terminal:
                if value.state.is_interrupted or asyncio.get_running_loop().time() > until:
                    raise NotApplicable(
                        f"the task is {_short(value.state)} and does not end; --task names a text "
                        "whose task ends by itself"
                    )
                await asyncio.sleep(0.1)
                value = (await self.get(value.id)).given()
            self._finished = value
        return self._finished

    async def asking(self) -> Task:
        """Return a task that waits for its caller."""
        value = (await self.send(self.texts.ask or self.texts.text)).given()
        if not isinstance(value, Task) or value.state is not TaskState.INPUT_REQUIRED:
            raise NotApplicable("--ask names a text that makes the agent ask for more")
        return value

    async def running(self) -> Task:
        """Return a task that has not ended."""
        text = self.texts.slow or self.texts.ask or self.texts.task or self.texts.text
        value = (await self.send(text, at_once=True)).given()
        if not isinstance(value, Task) or value.state.is_terminal:
            raise NotApplicable("--slow names a text that the agent works on for some seconds")
        return value


def named(error: BaseException) -> str:
    """Return an error as reports name it."""
    code = f" ({error.code})" if isinstance(error, A2AError) else ""
    return f"{type(error).__name__}{code}: {str(error)[:300]}"


def _short(state: TaskState) -> str:
    return str(state).removeprefix("TASK_STATE_")


def last_state(events: tuple[Event, ...]) -> TaskState | None:
    """Return the last state in the events of a stream."""
    for event in reversed(events):
        if isinstance(event, Task | TaskStatusUpdateEvent):
            return event.status.state
    return None
