"""A probe of one interface of an agent for server checks, with the exchanges on the wire."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from parley.client.bindings.binding import binding_class
from parley.client.bindings.http import Body, HttpTransport, OpenResponse, redacted
from parley.client.bindings.request_auth import NOTHING, RequestAuth, RequestParameters, override
from parley.client.errors import ClientError, Disconnected
from parley.conformance.verdicts import ConformanceViolation, NotApplicable, fail_if
from parley.model.cards import AgentCard, AgentInterface
from parley.model.errors import A2AError, an
from parley.model.operations import BY_NAME, SendMessageConfiguration
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent
from parley.wire import versions
from parley.wire.sse import SseParser
from parley.wire.versions import Dialect

SHOWN = 700
"""The most characters of a body that the evidence shows."""


class WireExchange(msgspec.Struct, kw_only=True):
    """A request over HTTP with its headers (``asked``), and the response."""

    method: str
    url: str
    asked: dict[str, str] = {}
    sent: bytes = b""
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body as JSON, ``None`` for other content."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def media_type(self) -> str:
        """The media type of the response, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def __str__(self) -> str:
        lines = [f"{self.method} {redacted(self.url)}"]
        if self.sent:
            lines.append(_shortened(self.sent))
        lines.append(
            f"{self.status or 'no response'} {self.headers.get('content-type', '')}".strip()
        )
        if self.body:
            lines.append(_shortened(self.body))
        return "\n".join(lines)


GONE = object()
"""Removes a member from the request."""


class Alteration(NamedTuple):
    """A check's changes to the requests of Parley's client before they are sent.

    ``members`` are values by their paths, such as ``message.parts.0.text``, or ``/method`` in the
    envelope of JSON-RPC; ``verb`` is the HTTP method; ``query`` is appended to the address.
    """

    members: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    query: str = ""
    verb: str = ""

    def body(self, body: Body) -> Body:
        """Return the body of a request with the members in it."""
        if self.verb == "GET":
            return None
        if not self.members or not isinstance(body, bytes):
            return body
        whole = json.loads(body)
        for path, value in self.members.items():
            *way, last = path.removeprefix("/").split(".")
            place = whole if path.startswith("/") else whole.get("params", whole)
            for name in way:
                place = place[int(name)] if isinstance(place, list) else place[name]
            if value is GONE:
                place.pop(last, None)
            else:
                place[last] = value
        return json.dumps(whole).encode()


class LoggedTransport(HttpTransport):
    """An HTTP transport that keeps its latest exchange, and alters requests."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.recent: deque[WireExchange] = deque(maxlen=8)
        self.alteration = Alteration()

    @property
    def last(self) -> WireExchange | None:
        """The latest exchange, or ``None``."""
        return self.recent[-1] if self.recent else None

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
        """Send a request, yield the response, and record both."""
        how = self.alteration
        method, headers, body = how.verb or method, override(headers, how.headers), how.body(body)
        if how.query:
            url += ("&" if "?" in url else "?") + how.query
        sent = body if isinstance(body, bytes) else b""
        exchange = WireExchange(method=method, url=url, asked=dict(headers), sent=sent)
        self.recent.append(exchange)
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
    """The texts for the agent under test: any message, and texts with a known outcome.

    ``task`` makes it work on a task to the end, ``ask`` makes it ask a question, ``slow`` makes it
    work for some seconds. ``text`` replaces a missing text.
    """

    text: str = "Hello"
    task: str = ""
    ask: str = ""
    slow: str = ""


class CallResult(NamedTuple):
    """The response to a call: a value or an error. ``wire`` is the HTTP exchange, ``None`` over
    gRPC.

    The value of a stream is the tuple of its events; ``closed`` is false for a stream that was
    still open.
    """

    operation: str
    value: Any = None
    error: Exception | None = None
    wire: WireExchange | None = None
    closed: bool = True

    @property
    def result(self) -> dict[str, Any]:
        """The result as JSON, without the member that wraps a task or message."""
        self.given()
        answer = self.wire.json if self.wire is not None else None
        found = answer.get("result") if isinstance(answer, dict) and "jsonrpc" in answer else answer
        if isinstance(found, dict) and len(found) == 1:
            found = found.get("task", found.get("message", found))
        return members_of(found)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream as JSON."""
        self.given()
        assert self.wire is not None
        if self.wire.media_type != "text/event-stream":
            raise NotApplicable("the response is not a stream")
        found = []
        for _, _, data in SseParser().feed(self.wire.body):
            try:
                found.append(json.loads(data))
            except ValueError:
                raise ConformanceViolation(f"an event is not JSON: {data[:80]!r}") from None
            members_of(found[-1], f"an event is not a JSON object: {data[:80]!r}")
        return found

    def given(self) -> Any:
        """Return the value. Raises ``ConformanceViolation`` for an error, and for an
        empty stream.
        """
        if self.error is not None:
            raise ConformanceViolation(f"{self.operation} was answered with {named(self.error)}")
        fail_if(self.value == (), "the stream ended without an event")
        return self.value

    def rejected_with(self, *kinds: type[A2AError], why: str) -> A2AError:
        """Return the error. Raises ``ConformanceViolation`` for another error, and for success."""
        wanted = " or ".join(f"{kind.__name__} ({kind.code})" for kind in kinds)
        error = self.rejected(why=why, wanted=wanted)
        # Clients use the reason of an error, if it has one; the code has to be right as well.
        answer = self.wire.json if self.wire is not None else None
        said = answer.get("error") if isinstance(answer, dict) and "jsonrpc" in answer else None
        found = ""
        if not isinstance(error, kinds):
            found = named(error)
        elif isinstance(said, dict) and said.get("code") not in {kind.code for kind in kinds}:
            found = f"the code {said.get('code')!r}"
        fail_if(found, f"{self.operation} {why} was answered with {found}, not with {wanted}")
        return error  # type: ignore[return-value]

    def rejected(self, *, why: str, wanted: str = "an error") -> Exception:
        """Return the error of any kind. Raises ``ConformanceViolation`` for success."""
        if self.error is None:
            is_stream = isinstance(self.value, tuple)
            kind = f"{len(self.value)} events" if is_stream else an(type(self.value).__name__)
            raise ConformanceViolation(
                f"{self.operation} {why} was answered with {kind}, not with {wanted}"
            )
        if isinstance(self.error, Disconnected):
            raise ConformanceViolation(f"{self.operation} {why} was not answered: {self.error}")
        return self.error


class _OtherVersion:
    """The dialect of one version whose requests name another version."""

    def __init__(self, real: Dialect, version: str) -> None:
        self._real = real
        self.version = version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Probe:
    """Calls one interface of an agent. ``patience`` is the time limit of a response, in seconds.

    ``parameters`` are the credentials for the interface; ``auth`` supplies others.
    """

    def __init__(
        self,
        http: LoggedTransport,
        card: AgentCard,
        interface: AgentInterface,
        binding: str,
        version: str,
        *,
        texts: ProbedTexts,
        patience: float,
        parameters: RequestParameters = NOTHING,
        auth: RequestAuth | None = None,
    ) -> None:
        self.http = http
        self.card = card
        self.interface = interface
        self.binding = binding
        self.version = version
        self.is_old = version == "0.3"
        self.dialect = versions.dialect(version)
        self.texts = texts
        self.task_text = texts.task or texts.text
        self.required = tuple(e.uri for e in card.capabilities.extensions if e.required)
        self.patience = patience
        self._parameters = parameters
        self._auth = auth
        self._callers: dict[str, Any] = {}
        self._finished: Task | None = None
        self._left: set[str] = set()

    @property
    def where(self) -> str:
        """The interface, as reports name it."""
        return f"{self.binding} {self.version}"

    @property
    def parts(self) -> str:
        """The name of a message's member for its parts: ``parts``, or ``content`` in 0.3 over
        HTTP+JSON.
        """
        return "content" if self.is_old and self.binding != "JSONRPC" else "parts"

    def _caller(self, version: str) -> Any:
        """Return the caller of the interface whose requests name a version."""
        if version not in self._callers:
            dialect: Any = self.dialect
            if version != self.version:
                dialect = _OtherVersion(dialect, version)
            self._callers[version] = binding_class(self.binding)(
                self.http,
                self._parameters.add_to(self.interface.url),
                dialect=dialect,
                headers=self._parameters.headers,
                timeout=self.patience,
                idle=self.patience,
                numbered=False,
                auth=self._auth,
            )
        return self._callers[version]

    async def aclose(self) -> None:
        """Cancel the unfinished tasks of the checks, if possible; close the connections."""
        left = [self.call("CancelTask", id=each) for each in self._left]
        try:
            async with asyncio.timeout(self.patience):
                await asyncio.gather(*left, return_exceptions=True)
        except TimeoutError:
            pass  # the agent under test may not support it
        finally:
            for caller in self._callers.values():
                await caller.aclose()

    # -- calls ---------------------------------------------------------------------------------

    async def call(
        self,
        operation: str,
        *,
        extensions: tuple[str, ...] | None = None,
        version: str | None = None,
        events: int = 0,
        begun: asyncio.Event | None = None,
        members: Mapping[str, Any] = {},
        headers: Mapping[str, str] = {},
        query: str = "",
        verb: str = "",
        **fields: Any,
    ) -> CallResult:
        """Call an operation once; ``fields`` are the fields of its request.

        ``version`` replaces the interface's version, ``extensions`` replaces the extensions that
        the card requires. A stream is read to its end, or up to ``events`` events; ``begun`` is set
        at its first event or its error. Requests over HTTP are altered: see ``Alteration``.
        """
        known = BY_NAME[operation]
        request = known.request(**fields)
        if self.interface.tenant and not getattr(request, "tenant", GONE):
            request = msgspec.structs.replace(request, tenant=self.interface.tenant)
        asked = self.required if extensions is None else extensions
        context = CallContext(extensions=frozenset(asked))
        caller = self._caller(self.version if version is None else version)
        self.http.recent.clear()
        self.http.alteration = Alteration(members, headers, query, verb)
        found: list[Event] = []
        value = error = None
        closed = True
        try:
            async with asyncio.timeout(self.patience):
                if not known.streaming:
                    value = await caller.call(known, request, context)
                    self._note(value)
                else:
                    async with aclosing(caller.stream(known, request, context)) as items:
                        async for item in items:
                            found.append(item.event)
                            if begun is not None:
                                begun.set()
                            self._note(item.event)
                            if len(found) == events:
                                closed = False
                                break
        except TimeoutError:
            closed = False
            fail_if(not known.streaming, f"{operation} was not answered within {self.patience:g} s")
        except (A2AError, ClientError) as caught:
            error = caught
        finally:
            self.http.alteration = Alteration()
            if begun is not None:
                begun.set()
        return CallResult(
            operation, tuple(found) if known.streaming else value, error, self.http.last, closed
        )

    async def send(
        self,
        text: str | None = None,
        *,
        operation: str = "SendMessage",
        id: str = "",
        task: str = "",
        context: str = "",
        part: Part | None = None,
        at_once: bool = False,
        history: int | None = None,
        modes: tuple[str, ...] = (),
        **options: Any,
    ) -> CallResult:
        """Send a message: ``modes`` are the accepted output modes; see ``call``."""
        said = Message(
            message_id=id or uuid4().hex,
            role=Role.USER,
            parts=(part or Part(text=self.texts.text if text is None else text),),
            task_id=task,
            context_id=context,
        )
        how = SendMessageConfiguration(
            return_immediately=at_once, history_length=history, accepted_output_modes=modes
        )
        return await self.call(operation, message=said, configuration=how, **options)

    async def task(self, **options: Any) -> Task:
        """Return the task of a message, which ends by itself."""
        value = (await self.send(self.task_text, **options)).given()
        if not isinstance(value, Task):
            raise NotApplicable("the agent answers directly; give --task a text that starts a task")
        return value

    async def get(self, id: str, history: int | None = None, **options: Any) -> CallResult:
        """Get a task."""
        return await self.call("GetTask", id=id, history_length=history, **options)

    async def stream(self, text: str | None = None, **options: Any) -> CallResult:
        """Send a message and read the stream to its end."""
        self.need_streams()
        return await self.send(text, operation="SendStreamingMessage", **options)

    async def subscribe(self, id: str, **options: Any) -> CallResult:
        """Subscribe to a task."""
        self.need_streams()
        return await self.call("SubscribeToTask", id=id, **options)

    def need_streams(self) -> None:
        """Raise ``NotApplicable`` for an agent without streams."""
        if not self.card.capabilities.streaming:
            raise NotApplicable("the card does not declare capabilities.streaming")

    def _note(self, answer: Any) -> None:
        """Keep the task of a response until it has ended."""
        if isinstance(answer, Task | TaskStatusUpdateEvent):
            task_id = answer.id if isinstance(answer, Task) else answer.task_id
            change = self._left.discard if answer.status.state.is_terminal else self._left.add
            change(task_id)

    # -- bytes ---------------------------------------------------------------------------------

    async def raw(
        self,
        body: bytes | None,
        *,
        verb: str = "POST",
        path: str = "",
        headers: Mapping[str, str] = {},
    ) -> WireExchange:
        """Send bytes to the interface, or to a path below it, and return the exchange."""
        given = await self._auth.parameters(None) if self._auth else NOTHING
        known = {"Content-Type": "application/json", "A2A-Version": self.version}
        if self.required:
            known[self.dialect.extensions_header] = ", ".join(self.required)
        url = given.add_to(self._parameters.add_to(self.interface.url))
        if path:
            url = url.rstrip("/") + f"/{self.interface.tenant}" * bool(self.interface.tenant) + path
        try:
            await self.http.send(
                verb,
                url,
                {**known, **self._parameters.headers, **given.headers, **headers},
                body,
                timeout=self.patience,
            )
        except ClientError as error:
            raise ConformanceViolation(f"{verb} {path or '/'} was not answered: {error}") from None
        assert self.http.last is not None
        return self.http.last

    async def rpc(
        self, method: str, params: Any, headers: Mapping[str, str] = {}, **more: Any
    ) -> WireExchange:
        """Post a JSON-RPC call that may be invalid."""
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}
        return await self.raw(json.dumps(call).encode(), headers=headers)

    # -- tasks in a known state ----------------------------------------------------------------

    async def finished(self) -> Task:
        """Return a task that has ended; the same task for all checks of the interface."""
        if self._finished is None:
            value = await self.task()
            until = asyncio.get_running_loop().time() + self.patience
            while not value.state.is_terminal:
                if value.state.is_interrupted or asyncio.get_running_loop().time() > until:
                    raise NotApplicable(
                        f"the task is {_short(value.state)} and does not end; give --task a text "
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
            raise NotApplicable("give --ask a text that makes the agent ask a question")
        return value

    async def running(self) -> Task:
        """Return a task that has not ended."""
        text = self.texts.slow or self.texts.ask or self.task_text
        value = (await self.send(text, at_once=True)).given()
        if not isinstance(value, Task) or value.state.is_terminal:
            raise NotApplicable("give --slow a text that takes the agent some seconds")
        return value


def members_of(value: Any, otherwise: str = "the response is not a JSON object") -> dict[str, Any]:
    """Return a JSON object. Raises ``ConformanceViolation`` for any other value."""
    if not isinstance(value, dict):
        raise ConformanceViolation(otherwise)
    return value


def named(error: BaseException) -> str:
    """Return an error as reports name it."""
    code = f" ({error.code})" if isinstance(error, A2AError) else ""
    return f"{type(error).__name__}{code}: {str(error)[:300]}"


def _short(state: TaskState) -> str:
    return str(state).removeprefix("TASK_STATE_")
