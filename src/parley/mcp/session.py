"""A connection to an MCP server, shared by turns: its tools, and their calls."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from contextvars import Context, ContextVar
from typing import Any, Self

import msgspec
from httpx2 import HTTPError
from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client._transport import ReadStream, Transport, TransportStreams
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.message import SessionMessage
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from parley.mcp.session_http import ANSWER_OVERHEAD_BYTES, http_client
from parley.mcp.tool_server import McpServer, McpServerUnavailable, McpSessionLost
from parley.model.concurrency import end
from parley.model.distribution import VERSION
from parley.security.egress import Egress, find_forbidden

log = logging.getLogger("parley.agent")

OPEN_SECONDS = 30.0
"""The time limit for the start of a server, or for its first response."""

CLOSE_SECONDS = 10.0
"""How long a connection may take to close."""

MAX_AGE = 300.0
"""After how many seconds the tools of a server are listed again."""

MAX_PAGES = 100
"""The number of pages a list of tools may have."""

MOST_LISTED = 2000
"""The most tools that a server may list."""

MOST_LISTED_BYTES = 16 * 1024 * 1024
"""The size limit of all listed tools, in bytes."""

_LOST = re.compile(
    r"((not found|bad request|unauthorized): )?"
    r"(session (not found|terminated|expired|has been terminated)(: \S*)?"
    r"|(invalid or expired|invalid|unknown|expired|missing|no valid) session( id)?( provided)?"
    r"|mcp-session-id header is required|server not initialized)\.?",
    re.IGNORECASE,
)
"""Messages for an unknown session, of servers that do not answer 404."""

_LOST_CODES = frozenset({types.INVALID_REQUEST, -32000, -32001})

OnQuestion = Callable[[types.ElicitRequestParams], Awaitable[types.ElicitResult]]
"""Forwards a question that a server asks during a call, and returns the answer."""

OnProgress = ProgressFnT
"""Receives the progress of a call."""

Answered = types.CallToolResult | types.InputRequiredResult

_ANSWER: TypeAdapter[Answered] = TypeAdapter(Answered)

_CALL: ContextVar[OnQuestion | None] = ContextVar("parley_mcp_call", default=None)
"""The question handler of the call to which the server's current message belongs, if known."""


class McpSession:
    """A connection to a server. A separate task owns it, so that turns of many tasks can share it.

    A server of the older protocol does not say to which call a question belongs. Over stdio such a
    server handles one turn at a time, so that each caller is asked about their own call only.
    """

    def __init__(self, server: McpServer, egress: Egress | None) -> None:
        self.server = server
        self.users = 0
        self.retired = False
        self.tools: tuple[types.Tool, ...] = ()
        self.left_out: frozenset[tuple[str, str]] = frozenset()
        self._egress = egress
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._close = asyncio.Event()
        self._listed_at = float("-inf")
        self._invalid: list[tuple[str, str]] = []
        self._asking: list[OnQuestion] = []
        self._turns: asyncio.Lock | None = None

    async def open(self) -> None:
        """Connect. Raises ``McpServerUnavailable``."""
        own = self._own()  # in a separate context: it outlives the turn that opens it
        self._owner = asyncio.create_task(own, name=f"mcp {self.server.name}", context=Context())
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.shield(self._ready)
        except (TimeoutError, asyncio.CancelledError) as error:
            await self.aclose()
            if isinstance(error, TimeoutError):
                raise self._unavailable(f"does not answer within {OPEN_SECONDS:g} s") from None
            raise

    async def _own(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._connect(stack))
                self._client = client
                if self.server.command and client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                    self._turns = asyncio.Lock()
                self._ready.set_result(None)
                await self._close.wait()
        except Exception as error:  # a boundary: each transport raises its own errors
            if self._ready.done():
                log.warning("the connection to %r ended: %s", self.server, _said(error))
            else:
                self._ready.set_exception(self._failed(error))
                self._ready.exception()
        finally:
            self.retired = True
            self._client = None

    async def _connect(self, stack: AsyncExitStack) -> Client:
        server = self.server
        transport: Transport
        if server.command:
            transport = stdio_client(
                StdioServerParameters(
                    command=server.command[0],
                    args=list(server.command[1:]),
                    env=server.env,
                    cwd=server.cwd,
                )
            )
        else:
            http = http_client(server, self._egress, self._ready.done)
            transport = streamable_http_client(
                server.url,
                http_client=await stack.enter_async_context(http),
                max_sse_event_size=server.max_result_bytes + ANSWER_OVERHEAD_BYTES,
            )
        return Client(
            self._watched(transport),
            client_info=types.Implementation(name="parley", version=VERSION),
            elicitation_callback=self._asked,
            message_handler=self._noticed,
            mode="legacy" if server.legacy else "auto",
            cache=None,
        )

    @asynccontextmanager
    async def _watched(self, transport: Transport) -> AsyncIterator[TransportStreams]:
        async with transport as (received, sent):
            yield _Received(received, self), sent

    def retire(self) -> None:
        """Accept no more calls, and close the connection later."""
        self.retired = True
        self._close.set()

    async def aclose(self) -> None:
        """Close the connection; a program is terminated. Idempotent."""
        self.retire()
        if self._owner is not None:
            await end([self._owner], grace=CLOSE_SECONDS)

    # -- tools ---------------------------------------------------------------------------------

    async def list_tools(self) -> tuple[types.Tool, ...]:
        """Return the tools of the server. Raises ``McpServerUnavailable``.

        Unusable tools are left out: ``left_out`` has their names and the reasons.
        """
        now = asyncio.get_running_loop().time()
        if now - self._listed_at <= MAX_AGE:
            return self.tools
        self._invalid = []
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                found = await self._listed(self._connected())
        except TimeoutError:
            raise self._unavailable(f"lists no tools within {OPEN_SECONDS:g} s") from None
        except (MCPError, HTTPError, ValueError, RuntimeError, OSError) as error:
            self.retired = True
            raise self._failed(error) from error
        kept: dict[str, types.Tool] = {}
        problems = list(self._invalid)
        most = self.server.max_schema_bytes
        wrong = await asyncio.to_thread(lambda: [tool_problem(each, most) for each in found])
        for tool, problem in zip(found, wrong, strict=True):
            if problem or tool.name in kept:
                problems.append((tool.name, problem or "an earlier tool has the same name"))
            else:
                kept[tool.name] = tool
        for name, problem in dict.fromkeys(problems):
            if (name, problem) not in self.left_out:  # already logged for the previous listing
                log.warning(
                    "the tool %.100r of the MCP server %s is left out: %s",
                    name,
                    self.server.address,
                    problem,
                )
        self.left_out = frozenset(problems)
        self.tools = tuple(kept.values())
        self._listed_at = now
        return self.tools

    async def _listed(self, client: Client) -> list[types.Tool]:
        found: list[types.Tool] = []
        size = 0
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            size += sum(len(each.model_dump_json()) for each in page.tools)
            if len(found) > MOST_LISTED:
                raise self._unavailable(f"lists more than {MOST_LISTED:,} tools")
            if size > MOST_LISTED_BYTES:
                raise self._unavailable(f"lists tools of more than {MOST_LISTED_BYTES:,} bytes")
            if (cursor := page.next_cursor) is None:
                break
        return found

    def as_offered(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        """Drop invalid entries from a list of tools: the package would reject the whole list."""
        message = None if isinstance(item, Exception) else item.message
        if self._client is None or not isinstance(message, types.JSONRPCResponse):
            return item
        result, version = message.result, self._client.protocol_version
        listed = result.get("tools")
        if not isinstance(listed, list) or not list_problem(version, result):
            return item
        kept = []
        for tool in listed:
            if problem := list_problem(version, {**result, "tools": [tool]}):
                name = tool.get("name") if isinstance(tool, dict) else tool
                self._invalid.append((str(name), problem))
            else:
                kept.append(tool)
        result["tools"] = kept
        return item

    async def call(
        self,
        params: types.CallToolRequestParams,
        *,
        timeout: float,
        on_question: OnQuestion,
        on_progress: OnProgress | None = None,
    ) -> Answered:
        """Call a tool once. Raises ``MCPError``, and ``TimeoutError`` after ``timeout`` seconds.

        Raises ``McpSessionLost`` if the server has certainly not executed the call, and
        ``McpServerUnavailable`` for a response that is not a tool result. The time of
        ``on_question`` counts as well, because the server waits.
        """
        async with self._turns or nullcontext():
            client = self._connected()
            self._asking.append(on_question)
            token = _CALL.set(on_question)
            try:
                async with asyncio.timeout(timeout):
                    answer: Answered = await client.session.send_request(
                        types.CallToolRequest(params=params), _ANSWER, progress_callback=on_progress
                    )
            except MCPError as error:
                if error.code == types.CONNECTION_CLOSED and self.retired:
                    raise self._unavailable(
                        "ended the connection during the call; it is not known whether "
                        "it was executed"
                    ) from None
                if self._has_lost(error):
                    raise self._failed(error) from None
                raise
            except ValidationError as error:
                raise self._unavailable(f"returned an invalid result: {_said(error)}") from None
            finally:
                _CALL.reset(token)
                self._asking.remove(on_question)
        if isinstance(answer, types.InputRequiredResult) or answer.is_error:
            return answer
        if any(
            each.name == params.name for each in self.tools
        ):  # other names would trigger a new listing
            await client.session.validate_tool_result(params.name, answer)
        return answer

    def _connected(self) -> Client:
        if self._client is None or self.retired:
            raise McpSessionLost(f"the MCP server {self.server.address} has ended the connection")
        return self._client

    # -- requests and notifications of the server ----------------------------------------------

    async def _asked(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        asking = _CALL.get()
        if asking not in self._asking:
            asking = self._asking[0] if len(self._asking) == 1 else None
        if asking is None:
            return types.ErrorData(
                code=types.INVALID_REQUEST,
                message="it is not known which call this question belongs to",
            )
        return await asking(params)

    async def _noticed(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listed_at = float("-inf")

    # -- failures ------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> McpServerUnavailable:
        if isinstance(error, McpServerUnavailable):
            return error
        if self._has_lost(error):
            self.retired = True
            return McpSessionLost(f"the MCP server {self.server.address} has lost the session")
        leaves = _leaves(error)
        forbidden = next(filter(None, map(find_forbidden, (error, *leaves))), None)
        if forbidden is not None:
            return self._unavailable(
                f"must not be called: {forbidden}. A turn named it, possibly from a caller's "
                "input: name "
                "the server outside the turn, or allow its address (allow_private_agents)"
            )
        if self.server.command and isinstance(leaves[0], FileNotFoundError):
            program = self.server.command[0]
            return self._unavailable(
                f"cannot be started: {program!r} is not a program, or its cwd is not a folder"
            )
        return self._unavailable(f"cannot be used: {_said(error)}")

    def _has_lost(self, error: BaseException) -> bool:
        """Return whether the server reports an unknown session."""
        if self.server.command or not isinstance(error, MCPError):
            return False
        return error.code in _LOST_CODES and bool(_LOST.fullmatch(error.message.strip()))

    def _unavailable(self, text: str) -> McpServerUnavailable:
        return McpServerUnavailable(f"the MCP server {self.server.address} {text}")


class _Received:
    """The stream of a server's messages: checks each message, and reports the end."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], session: McpSession) -> None:
        self._stream = stream
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._session.as_offered(await self._stream.__anext__())

    async def receive(self) -> SessionMessage | Exception:
        return self._session.as_offered(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._session.retire()
        await self._stream.aclose()


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _said(error: BaseException) -> str:
    first = _leaves(error)[0]
    return (str(first) or type(first).__name__)[:500]


# -- unusable tools ---------------------------------------------------------------------------


NAME_LENGTH = 128
"""The length limit of a tool's name in MCP."""


def list_problem(version: str, listed: Mapping[str, Any]) -> str:
    """Return the reason why the package rejects a list of tools, empty if it accepts it."""
    try:
        methods.parse_server_result("tools/list", version, listed)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][2:])) or "it"
        return f"{where}: {first['msg']}"[:500]
    return ""


def tool_problem(tool: types.Tool, most: int) -> str:
    """Return the reason why a tool is unusable, empty if it is usable.

    Its schemas may have ``most`` bytes.
    """
    if not 0 < len(tool.name.strip()) <= NAME_LENGTH:
        return f"its name has {len(tool.name):,} characters, not 1 to {NAME_LENGTH}"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it must be called as an MCP task, which is not supported"
    schemas = [each for each in (tool.input_schema, tool.output_schema) if each is not None]
    if (size := sum(len(msgspec.json.encode(schema)) for schema in schemas)) > most:
        return f"its schemas have {size:,} bytes, more than {most:,}: raise max_schema_bytes"
    return schema_problem(tool)


def schema_problem(tool: types.Tool) -> str:
    """Return the reason why the schemas of a tool are unusable, empty if they are usable."""
    for which, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
        if schema is None:
            continue
        validator = validator_for(schema, default=Draft202012Validator)
        try:  # JSON Schema patterns differ from Python's, so formats are not checked
            validator.check_schema(schema, format_checker=None)
        except (SchemaError, RecursionError) as error:
            return f"its {which} schema is not a JSON Schema: {str(error).partition(chr(10))[0]}"[
                :500
            ]
    return ""
