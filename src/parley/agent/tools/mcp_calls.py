"""One call of an MCP tool in a turn: remembered, so that a crash or a question repeats nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import jsonschema  # type: ignore[import-untyped]
import msgspec
from jsonschema.validators import extend  # type: ignore[import-untyped]
from mcp import MCPError, types
from referencing import Registry

from parley.agent.tools.mcp_content import result_of
from parley.agent.tools.mcp_server import McpServer, McpServerUnavailable
from parley.agent.tools.mcp_sessions import ServerUse
from parley.agent.tools.tool import ToolResult
from parley.engine.turn.attempt import Answer, Attempt, ToolCallRecord
from parley.extensions.questions import schema_part
from parley.extensions.usage import RUN_PROGRESS
from parley.model.errors import FieldViolation
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role
from parley.model.tasks import TaskState

if TYPE_CHECKING:
    from parley.agent.tools.mcp_session import Answered

# -- mcp questions ----------------------------------------------------------------------------
#
# What MCP servers ask during calls (elicitation), asked of the turn's caller.


MOST_TRIES = 20
"""How often a caller is asked until the answer fits."""

DECLINED = frozenset({"decline", "declined", "cancel"})
"""The texts of answers that decline."""

ASKED_CHARACTERS = 4000
"""How many characters of a server's question are passed on."""


async def ask(
    attempt: Attempt, params: types.ElicitRequestParams, *, key: str, tool: str
) -> types.ElicitResult:
    """Ask the caller, in this turn or a later one, and return the answer as MCP has it.

    A form goes out with its JSON Schema, and is asked again until the answer fits. An address to
    open is AUTH_REQUIRED; any message says that it is done.
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


def _declined(answer: Answer) -> types.ElicitResult | None:
    if answer.text.strip().lower() in DECLINED:
        return types.ElicitResult(action="decline")
    return None


def _value_of(answer: Answer, schema: Mapping[str, Any]) -> Any:
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
        return "the answer is a JSON object with the fields of the schema"
    try:
        error = next(_validator(msgspec.json.encode(schema)).iter_errors(value), None)
    except (jsonschema.SchemaError, msgspec.MsgspecError, RecursionError):
        return ""  # the server's schema is not one: it judges the answer itself
    return (
        "" if error is None else f"{'.'.join(map(str, error.path)) or '$'}: {error.message[:500]}"
    )


_LEFT_TO_SERVERS = ("$ref", "$dynamicRef", "pattern", "patternProperties")
"""What is not checked here: a server could make it take for ever, or name addresses to read."""


def _unchecked(*_: object) -> tuple[()]:
    return ()


_Flat = extend(jsonschema.Draft202012Validator, dict.fromkeys(_LEFT_TO_SERVERS, _unchecked))


@lru_cache(maxsize=64)
def _validator(schema: bytes) -> Any:
    decoded = msgspec.json.decode(schema)
    jsonschema.Draft202012Validator.check_schema(decoded)
    return _Flat(decoded, registry=Registry())


# -- mcp calls --------------------------------------------------------------------------------


MAX_ROUNDS = 20
"""How often a server may ask during one call."""

PROGRESS_SECONDS = 0.1
"""How often the progress of a call is shown, at most."""

PROGRESS_CHARACTERS = 1000
"""How long the text of a progress notification is shown."""

Question = tuple[types.ElicitRequestParams, "asyncio.Future[types.ElicitResult]"]


class CalledTool(Protocol):
    """The tool that is called: ``McpTool``."""

    name: str
    tool: str
    server: McpServer
    use: ServerUse
    is_repeatable: bool


class McpCall:
    """A call of a tool in an attempt at a turn, and what the log has of it."""

    def __init__(self, attempt: Attempt, tool: CalledTool, key: str) -> None:
        self._attempt = attempt
        self._tool = tool
        self._key = key
        self._asked = 0
        self._questions: asyncio.Queue[Question] = asyncio.Queue()
        self._record = ToolCallRecord(tool=tool.tool, server=tool.server.address)
        self._shown_at = float("-inf")

    async def run(self, arguments: dict[str, Any], *, timeout: float, progress: bool) -> ToolResult:
        """Return the result, from the log or from the server."""
        attempt = self._attempt
        attempt.use(f"tool:{self._key}", "tool call")
        logged = attempt.logged_tool_call(self._key)
        if logged is not None:
            if (logged.server, logged.tool) != (self._record.server, self._record.tool):
                raise ValueError(
                    f"the call {self._key!r} went to {logged.tool} of {logged.server} in an earlier"
                    f" attempt, and now to {self._record.tool} of {self._record.server}; a key "
                    "names one call, so that its result can be found again"
                )
            self._record = logged
            if logged.state == "returned":
                return _remembered(logged)
            if logged.state == "called" and not self._tool.is_repeatable:
                return await self._finish(_interrupted(self._tool))
        begins_anew = logged is None or not logged.round  # a server may ask once, and act then
        if begins_anew and not self._tool.is_repeatable:
            await self._log("called")
        result = await self._exchange(arguments, timeout, progress)
        return await self._finish(result)

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
        await self._attempt.log_tool_call(self._key, self._record)

    # -- the exchange with the server ----------------------------------------------------------

    async def _exchange(
        self, arguments: dict[str, Any], timeout: float, progress: bool
    ) -> ToolResult:
        """Call the tool, and again with the answers to what the server asks."""
        try:
            for _ in range(MAX_ROUNDS):
                responses, state = await self._answers()
                answer = await self._call(arguments, responses, state, timeout, progress)
                if isinstance(answer, types.CallToolResult):
                    return result_of(
                        answer, max_bytes=self._tool.server.max_result_bytes, tool=self._tool.name
                    )
                await self._keep_questions(answer)
        except TimeoutError:
            return _error(f"{self._tool.name} did not answer within {timeout:g} s")
        except (MCPError, McpServerUnavailable, RuntimeError) as error:
            return _error(f"{self._tool.name}: {error}")
        return _error(f"{self._tool.name} asked more than {MAX_ROUNDS} times")

    async def _call(
        self,
        arguments: dict[str, Any],
        responses: types.InputResponses | None,
        state: str | None,
        timeout: float,
        progress: bool,
    ) -> Answered:
        """Call once; questions that come meanwhile are asked from here, the turn's own task."""
        work = asyncio.ensure_future(
            self._tool.use.run(
                lambda session: session.call(
                    self._tool.tool,
                    arguments,
                    timeout=timeout,
                    on_question=self._on_question,
                    on_progress=self._on_progress if progress else None,
                    responses=responses,
                    state=state,
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
                    params, answered = asked.result()
                finally:
                    asked.cancel()
                if self._record.state != "asked":
                    await self._log("asked")
                result = await self._ask(params)
                if not answered.done():  # the server may have given up meanwhile
                    answered.set_result(result)
                await self._log("called")  # from here on the tool may do what it was called for
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            if not work.cancelled():
                work.exception()

    async def _on_question(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Hand a question to the turn, and wait for its answer."""
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
        key = f"tool:{self._key}:{name or self._asked}"
        return await ask(self._attempt, params, key=key, tool=self._tool.name)

    # -- questions that a server returns -------------------------------------------------------

    async def _keep_questions(self, answer: types.InputRequiredResult) -> None:
        """Log what the server asks, and what it wants to have back with the answers."""
        requests = answer.input_requests or {}
        kept = {
            name: request.model_dump(mode="json", by_alias=True, exclude_none=True)
            for name, request in requests.items()
            if isinstance(request, types.ElicitRequest)
        }
        if other := [name for name in requests if name not in kept]:
            raise McpServerUnavailable(
                f"the server asks for what an agent does not give: {', '.join(sorted(other))}"
            )
        if not requests:
            await asyncio.sleep(min(2.0, 0.1 * (self._record.round + 1)))  # it is not ready yet
        changes = {"questions": kept, "request_state": answer.request_state}
        await self._log("asked", **changes, round=self._record.round + 1)

    async def _answers(self) -> tuple[types.InputResponses | None, str | None]:
        """Return the answers to what the server has asked last, once the caller gave them."""
        record = self._record
        if record.state != "asked" or not record.round:
            return None, None
        responses: types.InputResponses = {}
        for name, request in record.questions.items():
            params = types.ElicitRequest.model_validate(request).params
            responses[name] = await self._ask(params, f"{record.round}:{name}")
        if not self._tool.is_repeatable:
            await self._log("called")
        return responses or None, record.request_state


def _remembered(record: ToolCallRecord) -> ToolResult:
    return ToolResult(parts=record.parts, data=record.data, is_error=record.failed)


def _error(text: str) -> ToolResult:
    return ToolResult(parts=(Part(text=text),), is_error=True)


def _interrupted(tool: CalledTool) -> ToolResult:
    return _error(
        f"the call of {tool.name} was interrupted when this server stopped; it is not known "
        "whether it was done, so it was not repeated"
    )
