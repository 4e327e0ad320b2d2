"""The tools of an MCP server in a turn: shared connections, calls, and questions of the server.

The task's log has each call, so that a crash or a question repeats nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import jsonschema  # type: ignore[import-untyped]
import msgspec
from jsonschema.validators import extend  # type: ignore[import-untyped]
from mcp import MCPError, types
from referencing import Registry

from parley.agent.tools.tool import ToolResult, failed
from parley.agent.turn import Turn
from parley.client.auth.credentials import Credential
from parley.engine.turn.attempt import TOOL_PREFIX, Attempt, UserAnswer
from parley.extensions.questions import schema_part
from parley.extensions.usage import RUN_PROGRESS
from parley.mcp.content import result_of
from parley.mcp.session import Answered, McpSession
from parley.mcp.tool_server import McpServer, McpServerUnavailable, McpSessionLost
from parley.model.concurrency import KeyedLocks, end
from parley.model.errors import FieldViolation
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role
from parley.model.struct import A2AStruct
from parley.model.tasks import TaskState
from parley.observe import tracing
from parley.security.egress import Egress

log = logging.getLogger("parley.agent")

T = TypeVar("T")

DESCRIPTION_LENGTH = 4000
"""The length limit of a tool's description in characters."""

MAX_ROUNDS = 20
"""How often a server may ask during one call."""

PROGRESS_SECONDS = 0.1
"""The least interval between two shown progress notifications of a call."""

PROGRESS_CHARACTERS = 1000
"""The length limit of a shown progress notification."""

Question = tuple[types.ElicitRequestParams, "asyncio.Future[types.ElicitResult]"]


@asynccontextmanager
async def tools_of(
    server: McpServer, turn: Turn, *, progress: bool
) -> AsyncIterator[list[McpTool]]:
    """Connect to a server for a turn, and yield its tools. Raises ``McpServerUnavailable``."""
    use = ServerUse(turn.shared(McpSessions), server, turn._services.egress)
    try:
        with turn._attempt.waits.busy():
            tools = await use.run(partial(_offered, server))
        yield [McpTool(turn._attempt, use, tool, progress=progress) for tool in tools]
    finally:
        use.release()


async def _offered(server: McpServer, session: McpSession) -> list[types.Tool]:
    """Return the tools that turns may use. A server may offer different tools in each session."""
    tools = await session.list_tools()
    wanted = {*(server.tools or ())} - {each.name for each in tools}
    for name, problem in sorted(session.left_out):
        if name in wanted:
            raise McpServerUnavailable(
                f"the tool {name} of the MCP server {server.address} cannot be used: {problem}"
            )
    if wanted:
        raise McpServerUnavailable(
            f"the MCP server {server.address} has no tool {', '.join(sorted(wanted))}"
        )
    found = [each for each in tools if server.tools is None or each.name in server.tools]
    if len(found) > server.max_tools:
        raise McpServerUnavailable(
            f"the MCP server {server.address} has {len(found)} tools, more than {server.max_tools}:"
            " name those that are needed (tools=[...]), or raise max_tools"
        )
    return found


class McpTool:
    """A tool of an MCP server in a turn. ``is_repeatable``: a call may be repeated
    after a crash.
    """

    remembers_calls = True

    def __init__(
        self, attempt: Attempt, use: ServerUse, described: types.Tool, *, progress: bool
    ) -> None:
        self.name = described.name
        self.description = (described.description or described.title or "")[:DESCRIPTION_LENGTH]
        self.parameters: Mapping[str, Any] = described.input_schema
        self.output_schema: Mapping[str, Any] | None = described.output_schema
        hints = described.annotations
        self.is_repeatable = use.server.repeats or bool(
            hints and (hints.read_only_hint or hints.idempotent_hint)
        )
        self.use = use
        self.attempt = attempt
        self.progress = progress

    async def call(
        self, arguments: Mapping[str, Any], *, key: str, timeout: float = 0.0
    ) -> ToolResult:
        """Call it once in the life of the task; later attempts read the result from the log.

        Rejections by the server, and failures, are results with ``is_error``. The server's
        questions go to the turn's caller. ``timeout``, in seconds, replaces the server's timeout.

        Raises ``ValueError`` for a key that this turn has used.
        """
        return await McpCall(self, dict(arguments), key, timeout or self.use.server.timeout).run()


MAX_IDLE_SESSIONS = 64
"""The number of idle connections kept."""


class ServerUse:
    """A server in a turn, with its connection, which is replaced if it is lost."""

    def __init__(self, sessions: McpSessions, server: McpServer, egress: Egress | None) -> None:
        self.server = server
        self.session: McpSession | None = None
        self._sessions = sessions
        self._egress = egress
        self._opening = asyncio.Lock()

    async def run(self, work: Callable[[McpSession], Awaitable[T]]) -> T:
        """Run ``work`` with a connection, and once more with a new one if the session was lost.

        Raises ``McpServerUnavailable``, and the errors of ``work``.
        """
        try:
            return await self._run(work)
        except McpSessionLost as error:
            log.info("%s: opening a new session", error)
        try:
            return await self._run(work)
        except McpSessionLost as error:
            raise McpServerUnavailable(f"{error}, and so has the new session") from None

    async def _run(self, work: Callable[[McpSession], Awaitable[T]]) -> T:
        async with self._opening:
            if self.session is None or self.session.retired:
                self.release()
                self.session = await self._sessions.acquire(self.server, self._egress)
                await self.session.list_tools()
            session = self.session
            session.users += 1  # a lost session is closed after its last call
        try:
            return await work(session)
        finally:
            self._sessions.release(session)

    def release(self) -> None:
        """Release the connection. Idempotent."""
        session, self.session = self.session, None
        if session is not None:
            self._sessions.release(session)


class McpSessions:
    """Opens each connection once for all turns that name the same server.

    ``aclose`` closes all connections; the next turn opens new ones.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, McpSession] = {}
        self._locks = KeyedLocks()
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self, server: McpServer, egress: Egress | None) -> McpSession:
        """Return a connection; ``release`` must follow.

        ``egress`` must allow the server's address, unless the agent's author named the server.
        """
        async with self._locks.of(server.key):
            found = self._kept.get(server.key)
            if found is None or found.retired:
                if found is not None and not found.users:
                    self._drop(found)
                found = McpSession(server, egress)
                await found.open()
                self._kept[server.key] = found
            found.users += 1
        idle = [each for each in self._kept.values() if not each.users]
        for each in idle[: max(0, len(idle) - MAX_IDLE_SESSIONS)]:
            self._drop(each)
        return found

    def release(self, session: McpSession) -> None:
        """Release a connection."""
        session.users -= 1
        auth = session.server.auth
        is_personal = isinstance(auth, Credential) and auth.is_personal  # no other turn can use it
        if not session.users and (session.retired or is_personal):
            self._drop(session)

    async def aclose(self) -> None:
        """Close all connections, even while turns use them."""
        for session in list(self._kept.values()):
            self._drop(session)
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop(self, session: McpSession) -> None:
        if self._kept.get(session.server.key) is session:
            del self._kept[session.server.key]
        closing = asyncio.create_task(session.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class ToolCallRecord(A2AStruct, frozen=True, kw_only=True):
    """The record of a tool call of an MCP server in the log.

    ``server`` is its address, without secrets. ``state`` is ``called``, ``asked`` (the server waits
    for the caller of the task) or ``returned``; then ``parts`` and ``data`` are the result.
    ``questions`` are the requests of round ``round``, and ``request_state`` is the server's state,
    which must be returned with their answers.
    """

    server: str
    tool: str
    state: str = ""
    parts: tuple[Part, ...] = ()
    data: Any = None
    failed: bool = False
    questions: dict[str, Any] = {}
    request_state: str | None = None
    round: int = 0


class McpCall:
    """A call of a tool in an attempt at a turn, and its record in the log."""

    def __init__(self, tool: McpTool, arguments: dict[str, Any], key: str, timeout: float) -> None:
        self._attempt = tool.attempt
        self._tool = tool
        self._arguments = arguments
        self._key = f"{TOOL_PREFIX}{key}"
        self._timeout = timeout
        self._asked = 0
        self._questions: asyncio.Queue[Question] = asyncio.Queue()
        self._record = ToolCallRecord(tool=tool.name, server=tool.use.server.address)
        self._shown_at = float("-inf")

    async def run(self) -> ToolResult:
        """Return the result, from the log or from the server."""
        attempt = self._attempt
        attempt.use(self._key, "tool call")
        logged = attempt.logged(self._key, ToolCallRecord)
        if logged is not None:
            if (logged.server, logged.tool) != (self._record.server, self._record.tool):
                raise ValueError(
                    f"the call {self._key.removeprefix(TOOL_PREFIX)!r} went to {logged.tool} of "
                    f"{logged.server} in an earlier attempt, but now goes to {self._record.tool} "
                    "of "
                    f"{self._record.server}; a key names one call, so that its result can be found "
                    "again"
                )
            self._record = logged
            if logged.state == "returned":
                return ToolResult(parts=logged.parts, data=logged.data, is_error=logged.failed)
            if logged.state == "called" and not self._tool.is_repeatable:
                return await self._finish(
                    failed(
                        f"the call of {self._tool.name} was interrupted when this server stopped; "
                        "it is not known whether it was executed, so it was not repeated"
                    )
                )
        begins_anew = logged is None or not logged.round  # a server may ask once and then act
        if begins_anew and not self._tool.is_repeatable:
            await self._log("called")
        return await self._finish(await self._exchange())

    async def _finish(self, result: ToolResult) -> ToolResult:
        await self._log(
            "returned",
            parts=result.parts,
            data=result.data,
            failed=result.is_error,
            questions={},
            request_state=None,
        )
        return result

    async def _log(self, state: str, **changes: Any) -> None:
        self._record = msgspec.structs.replace(self._record, state=state, **changes)
        await self._attempt.log(self._key, self._record)

    # -- the exchange with the server ----------------------------------------------------------

    async def _exchange(self) -> ToolResult:
        """Call the tool, and repeat the call with the answers to the server's questions."""
        name, most = self._tool.name, self._tool.use.server.max_result_bytes
        try:
            for _ in range(MAX_ROUNDS):
                answer = await self._call(await self._answers())
                if isinstance(answer, types.CallToolResult):
                    return result_of(answer, max_bytes=most, tool=name)
                await self._keep_questions(answer)
        except TimeoutError:
            return failed(f"{name} did not answer within {self._timeout:g} s")
        except (MCPError, McpServerUnavailable, RuntimeError) as error:
            return failed(f"{name}: {error}")
        return failed(f"{name} asked more than {MAX_ROUNDS} times")

    async def _call(self, params: types.CallToolRequestParams) -> Answered:
        """Call once; questions during the call are asked from this task, which owns the turn."""
        work = asyncio.ensure_future(
            self._tool.use.run(
                lambda session: session.call(
                    params,
                    timeout=self._timeout,
                    on_question=self._on_question,
                    on_progress=self._on_progress if self._tool.progress else None,
                )
            )
        )
        try:
            while True:
                asked = asyncio.ensure_future(self._questions.get())
                try:
                    with self._attempt.waits.busy():
                        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
                    if not asked.done():
                        return work.result()
                    question, answered = asked.result()
                finally:
                    asked.cancel()
                if self._record.state != "asked":
                    await self._log("asked")
                result = await self._ask(question)
                if not answered.done():  # the server may have given up meanwhile
                    answered.set_result(result)
                await self._log("called")  # from here on the tool may act
        finally:
            await end([work])
            if not work.cancelled():
                work.exception()

    async def _on_question(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Forward a question to the turn, and wait for its answer."""
        answered: asyncio.Future[types.ElicitResult] = asyncio.get_running_loop().create_future()
        await self._questions.put((params, answered))
        return await answered

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._shown_at < PROGRESS_SECONDS or self._attempt.finished:
            return
        self._shown_at = now
        share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        text = (message or share)[:PROGRESS_CHARACTERS]
        shown = {"kind": "toolProgress", "name": self._tool.name, "text": text}
        writer = self._attempt.writer()
        writer.status(TaskState.WORKING, None, {RUN_PROGRESS: shown})
        await writer.drain()

    async def _ask(self, params: types.ElicitRequestParams, name: str = "") -> types.ElicitResult:
        self._asked += 1
        key = f"{self._key}:{name or self._asked}"
        return await ask(self._attempt, params, key=key, tool=self._tool.name)

    # -- questions that a server returns -------------------------------------------------------

    async def _keep_questions(self, answer: types.InputRequiredResult) -> None:
        """Log the server's questions, and the state to return with the answers."""
        requests = answer.input_requests or {}
        kept = {
            name: request.model_dump(mode="json", by_alias=True, exclude_none=True)
            for name, request in requests.items()
            if isinstance(request, types.ElicitRequest)
        }
        if other := [name for name in requests if name not in kept]:
            raise McpServerUnavailable(
                f"the server requests unsupported input: {', '.join(sorted(other))}"
            )
        if not requests:
            await asyncio.sleep(
                min(2.0, 0.1 * (self._record.round + 1))
            )  # the server is not ready yet
        changes = {"questions": kept, "request_state": answer.request_state}
        await self._log("asked", **changes, round=self._record.round + 1)

    async def _answers(self) -> types.CallToolRequestParams:
        """Return the call, with the answers to the server's last questions once they are given."""
        record = self._record
        carried = tracing.position(self._attempt.request.trace).headers
        meta: dict[str, Any] = {"_meta": carried} if carried else {}
        params = types.CallToolRequestParams(
            name=self._tool.name, arguments=self._arguments, **meta
        )
        if record.state != "asked" or not record.round:
            return params
        responses: types.InputResponses = {}
        for name, request in record.questions.items():
            asked = types.ElicitRequest.model_validate(request).params
            responses[name] = await self._ask(asked, f"{record.round}:{name}")
        if not self._tool.is_repeatable:
            await self._log("called")
        return params.model_copy(
            update={"input_responses": responses or None, "request_state": record.request_state}
        )


# -- questions of servers (elicitation), for the turn's caller ---------------------------------

MOST_TRIES = 20
"""How often a caller is asked for a valid answer."""

DECLINED = frozenset({"decline", "declined", "cancel"})
"""The texts of answers that decline."""

ASKED_CHARACTERS = 4000
"""The number of characters of a server's question forwarded."""


async def ask(
    attempt: Attempt, params: types.ElicitRequestParams, *, key: str, tool: str
) -> types.ElicitResult:
    """Ask the caller, in this turn or a later one, and return the answer in MCP's form.

    A form is sent with its JSON Schema, and repeated until the answer is valid. An address to open
    is AUTH_REQUIRED; any message confirms that it is done.
    """
    said = params.message[:ASKED_CHARACTERS]
    if isinstance(params, types.ElicitRequestURLParams):
        text = f"{said}\n\n{tool} asks you to open {params.url} and to answer when you are done."
        answer = await attempt.ask(TaskState.AUTH_REQUIRED, text, key)
        return _declined(answer) or types.ElicitResult(action="accept")
    schema = dict(params.requested_schema)
    problems: tuple[FieldViolation, ...] = ()
    for times in range(1, MOST_TRIES + 1):
        parts: tuple[Part, ...] = (Part(text=said),)
        if problems:
            parts += (Part(text=f"That does not fit: {problems[0].description}"),)
        message = Message(
            message_id=new_id(), role=Role.AGENT, parts=(*parts, schema_part(schema, problems))
        )
        answer = await attempt.ask(
            TaskState.INPUT_REQUIRED, message, key if times == 1 else f"{key}:again:{times}"
        )
        if (declined := _declined(answer)) is not None:
            return declined
        value = _value_of(answer, schema)
        wrong = _wrong(schema, value)
        if not wrong:
            return types.ElicitResult(action="accept", content=value)
        problems = (FieldViolation("$", wrong),)
    return types.ElicitResult(action="cancel")


def _declined(answer: UserAnswer) -> types.ElicitResult | None:
    if answer.text.strip().lower() in DECLINED:
        return types.ElicitResult(action="decline")
    return None


def _value_of(answer: UserAnswer, schema: Mapping[str, Any]) -> Any:
    """Return the values of a form: data, a JSON object, or a text for the only field."""
    for part in answer.parts:
        if part.has_data:
            return part.data
    text = answer.text.strip()
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    if isinstance(value, dict):
        return value
    fields = schema.get("properties")
    if not isinstance(fields, dict) or len(fields) != 1:
        return value
    ((name, field),) = fields.items()
    kind = field.get("type") if isinstance(field, dict) else None
    if kind == "boolean" and text.lower() in ("yes", "no"):
        value = text.lower() == "yes"
    return {name: text if kind == "string" else value}


def _wrong(schema: Mapping[str, Any], value: Any) -> str:
    if not isinstance(value, dict):
        return "the answer must be a JSON object with the fields of the schema"
    try:
        error = next(_validator(msgspec.json.encode(schema)).iter_errors(value), None)
    except (jsonschema.SchemaError, msgspec.MsgspecError, RecursionError):
        return ""  # the server's schema is invalid: the server judges the answer itself
    return (
        "" if error is None else f"{'.'.join(map(str, error.path)) or '$'}: {error.message[:500]}"
    )


_LEFT_TO_SERVERS = ("$ref", "$dynamicRef", "pattern", "patternProperties")
"""Keywords that only the server checks: they could take very long, or name addresses to read."""


def _unchecked(*_: object) -> tuple[()]:
    return ()


_Flat = extend(jsonschema.Draft202012Validator, dict.fromkeys(_LEFT_TO_SERVERS, _unchecked))


@lru_cache(maxsize=64)
def _validator(schema: bytes) -> Any:
    decoded = msgspec.json.decode(schema)
    jsonschema.Draft202012Validator.check_schema(decoded)
    return _Flat(decoded, registry=Registry())
