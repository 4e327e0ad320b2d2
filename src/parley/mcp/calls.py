"""Calls of agents for hosts: a message or a task, followed until it ends, asks, or takes long.

A call has its host (``HostRequest``), names its task for the host (``Handles``), and forwards the
agent's questions (``Asked``).
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from mcp import MCPError, types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from parley.agent.tools.tool import ToolResult
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.extensions.usage import run_progress
from parley.llm.remote_skills import RemoteQuestion, result_of
from parley.mcp.agents import WRAPPED_RESULT, BridgedAgent, BridgedAgents, SkillTool
from parley.mcp.content import blocks_of
from parley.mcp.questions import Asked, asked_by
from parley.model.concurrency import see_through
from parley.model.errors import A2AError, TaskNotCancelableError
from parley.model.parts import Message
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

log = logging.getLogger("parley.mcp")

CANCEL_SECONDS = 5.0
"""The time for which the cancellation of a call waits until its task is canceled."""

TASK_SECONDS = 2.0
"""After how many seconds a call becomes a task, for hosts that support tasks."""

Answer = types.CallToolResult | types.InputRequiredResult | dict[str, Any]


class AgentCalls:
    """Makes calls of agents for hosts. ``wait`` is the time limit of a call, in seconds.

    ``carries``: a host's own credentials go to the named agents.
    """

    def __init__(
        self, agents: BridgedAgents, handles: Handles, wait: float, *, carries: bool
    ) -> None:
        self.agents = agents
        self.handles = handles
        self.wait = wait
        self._carries = carries

    def host(self, context: ServerRequestContext[Any, Any]) -> HostRequest:
        """Return the host of a request."""
        return HostRequest(context, carries=self._carries)

    def named(self, host: HostRequest, handle: object) -> BridgedCall:
        """Return the call of a task by its handle. Raises ``MCPError`` for an unknown handle."""
        try:
            name, task_id = self.handles.read(str(handle), host.principal)
            slug, _, tool = name.partition("/")
            agent = self.agents.of(slug)
            if agent is None:
                raise UnknownHandle
        except UnknownHandle as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        return BridgedCall(self, host, agent, self.agents.tools.get(tool), task_id)


class BridgedCall:
    """A call of an agent for a host, as a ``tool`` if it is one, and its task.

    A call with a ``task_id`` continues that task; other calls get an id when the agent names the
    task.
    """

    def __init__(
        self,
        calls: AgentCalls,
        host: HostRequest,
        agent: BridgedAgent,
        tool: SkillTool | None = None,
        task_id: str = "",
    ) -> None:
        self.host = host
        self.agent = agent
        self.tool = tool
        self.task_id = task_id
        self._calls = calls

    @property
    def handle(self) -> str:
        """The name of the task for the host; it includes the tool if its results have a schema."""
        slug = self.agent.slug
        name = f"{slug}/{self.tool.name}" if self.tool and self._has_schema else slug
        return self._calls.handles.make(name, self.task_id, self.host.principal)

    @property
    def _has_schema(self) -> bool:
        return self.tool is not None and self.tool.output_schema is not None

    def connected(self) -> AbstractAsyncContextManager[RemoteAgent]:
        """Connect to the agent. Its errors become ``AgentFailed``."""
        return self._calls.agents.connected(self.agent, self.host.credentials)

    async def run(
        self,
        message: Mapping[str, Any] | None,
        *,
        wait: float | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send a message, or follow the task without one, and return the answer for the host.

        The answer is the result, the agent's question, or instructions for a task that takes
        longer. ``responses`` are the host's answers to earlier questions. Raises ``AgentFailed``.
        """
        limit = self._calls.wait if wait is None else wait
        is_task = self.host.takes_tasks and self.tool is not None
        if is_task:
            limit = min(limit, TASK_SECONDS)
        given = dict(responses or {})
        async with self.connected() as remote:
            while True:
                answer = await self._followed(remote, message, limit)
                if answer is None and is_task:
                    return created(self.handle, await remote.get(self.task_id))
                if answer is None:
                    handle = self.handle
                    text = (
                        f"The task {handle} is still running. Wait for it with follow_task(task="
                        f"{handle!r}), or stop it with cancel_task(task={handle!r})."
                    )
                    return self._note(text, TaskState.WORKING)
                try:
                    return called(result_of(answer), self.tool)
                except RemoteQuestion as question:
                    task = question.task
                asked, self.task_id = asked_by(task), task.id
                if (response := given.pop(asked.key, None)) is not None:
                    elicited = elicited_by(response)
                elif self.host.is_modern or not asked.can_be_asked(self.host.capabilities):
                    return self._asks(task, asked)
                else:
                    elicited = await self.host.elicit(asked.params)
                if elicited.action == "decline":
                    await _cancel(remote, task.id)
                    return failed("The user declined to answer, so the task was canceled.")
                if elicited.action == "cancel":
                    text = f"The user has not answered. {asked.said(self.handle)}"
                    return self._note(text, task.state)
                message = None if asked.is_auth else asked.content(elicited.content or {})

    async def _followed(
        self, remote: RemoteAgent, message: Mapping[str, Any] | None, limit: float
    ) -> Task | Message | None:
        """Return the answer, ``None`` after ``limit`` seconds, once the task is known.

        A call that is cancelled cancels the task.
        """
        began = asyncio.get_running_loop().time()
        if message is None:
            task = await remote.get(self.task_id)
            if task.state.is_terminal or task.state is TaskState.INPUT_REQUIRED:
                return task
            stream = remote.subscribe(self.task_id)
        else:
            stream = remote.stream(**{"task_id": self.task_id or None, **message})
        try:
            async with asyncio.timeout_at(began + limit if self.task_id else None) as deadline:
                async with stream as events:
                    async for event in events:
                        if isinstance(event, Message):
                            return event
                        if not self.task_id:
                            self.task_id = events.task_id
                            deadline.reschedule(began + limit)
                        if said := progress_of(event):
                            await self.host.progress(said)
                        if _waits(event):
                            break
        except TimeoutError:
            if not deadline.expired():
                raise
            return None
        except asyncio.CancelledError:
            if self.task_id:
                await _cancel(remote, self.task_id)
            raise
        return await remote.get(self.task_id)

    def _asks(self, task: Task, asked: Asked) -> Answer:
        if self.host.is_modern and asked.can_be_asked(self.host.capabilities):
            request = types.ElicitRequest(params=asked.params)
            return types.InputRequiredResult(
                input_requests={asked.key: request}, request_state=self.handle
            )
        return self._note(asked.said(self.handle), task.state)

    def _note(self, text: str, state: TaskState) -> types.CallToolResult:
        """Return an interim result. For a tool with a result schema it is an error."""
        return _noted(text, self.handle, state, is_error=self._has_schema)

    async def start(self, message: Mapping[str, Any]) -> types.CallToolResult:
        """Start a task, and return its handle at once; a direct answer is the result."""
        async with self.connected() as remote:
            answer = await remote.send(**message, return_immediately=True)
        if answer.state.is_terminal:
            return called(result_of(answer), None)
        self.task_id = answer.id
        handle = self.handle
        text = f"Started the task {handle}: follow it with follow_task, stop it with cancel_task."
        return _noted(text, handle, answer.state)


async def _cancel(remote: RemoteAgent, task_id: str) -> None:
    """Cancel a task, also while the call itself is being cancelled. Failures are logged."""

    async def cancel() -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await remote.cancel(task_id)
        except TaskNotCancelableError:
            pass  # the task has ended
        except (A2AError, ClientError, TimeoutError) as error:
            log.warning("the task %s is not canceled: %s", task_id, error)

    await see_through(cancel())  # for CANCEL_SECONDS at most


def _waits(event: Event) -> bool:
    """Return whether a task waits for an action of its caller."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state is TaskState.AUTH_REQUIRED
    return False


def progress_of(event: Event) -> str:
    """Return the progress text of an event, or an empty string."""
    if isinstance(event, TaskStatusUpdateEvent):
        said = event.status.message
        if event.status.state is TaskState.WORKING and said is not None:
            return said.text
        if (shown := run_progress(event)) and shown["kind"] == "toolProgress":
            return f"{shown.get('name')}: {shown.get('text')}"
    if isinstance(event, TaskArtifactUpdateEvent):
        texts = [part.text for part in event.artifact.parts if part.text]
        return "".join(texts) or f"artifact {event.artifact.name or event.artifact.artifact_id}"
    return ""


def called(result: ToolResult, tool: SkillTool | None) -> types.CallToolResult:
    """Return the result of an agent as the result of a tool."""
    data = result.data
    if tool is not None and tool.output_schema is not None and not result.is_error:
        if tool.wraps_result:
            data = {WRAPPED_RESULT: result.text if data is None else data}
        if data is None:
            return failed(
                f"{tool.name} returned no data, although its card declares it: {result.text}"
            )
    elif data is not None and not isinstance(data, dict):
        data = {WRAPPED_RESULT: data}  # the older protocol allows only objects
    return types.CallToolResult(
        content=blocks_of(result.parts), structured_content=data, is_error=result.is_error
    )


def failed(text: str) -> types.CallToolResult:
    """Return a result that is an error."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _noted(
    text: str, handle: str, state: TaskState, *, is_error: bool = False
) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        structured_content=None if is_error else {"task": handle, "state": state.value},
        is_error=is_error,
    )


# -- the request of a host --------------------------------------------------------------------


TASKS = "io.modelcontextprotocol/tasks"
"""The MCP extension for long tasks."""

SHOWN_CHARACTERS = 2000
"""The length limit of a progress notification, in characters."""

MOST_PROGRESS = 10_000
"""The most progress notifications of a call."""


class HostRequest:
    """A request of a host. ``carries``: its credentials go to the agents."""

    def __init__(self, context: ServerRequestContext[Any, Any], *, carries: bool) -> None:
        self._context = context
        self._progress = 0
        headers = getattr(context.request, "headers", None)
        self.credentials: dict[str, str] = {}
        if headers is not None and carries:
            kind, _, token = headers.get("authorization", "").strip().partition(" ")
            if kind.lower() == "bearer" and token.strip():
                self.credentials["bearer"] = token.strip()
            if key := headers.get("x-api-key", ""):
                self.credentials["api_key"] = key
        self.principal = None if headers is None else self._principal()

    def _principal(self) -> str:
        """Return the identity of the caller, if known: tasks are bound to it.

        Over stdio ``principal`` is ``None``: the connection has a single host.
        """
        token = get_access_token()
        if token is not None:
            return repr(principal_components(token))
        if self.credentials:
            return hashlib.sha256(repr(sorted(self.credentials.items())).encode()).hexdigest()
        return ""

    @property
    def is_modern(self) -> bool:
        """Return whether questions are results that the host answers by calling again."""
        return self._context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities | None:
        """The declared capabilities of the host."""
        return self._context.session.client_capabilities

    @property
    def takes_tasks(self) -> bool:
        """Return whether a long call may return a task of the extension."""
        found = self.capabilities
        return self.is_modern and bool(found and found.extensions and TASKS in found.extensions)

    async def progress(self, text: str) -> None:
        """Report the progress of a call to the host, if it requested reports."""
        if self._progress < MOST_PROGRESS:
            self._progress += 1
            await self._context.session.report_progress(
                self._progress, None, text[:SHOWN_CHARACTERS]
            )

    async def elicit(
        self, params: types.ElicitRequestFormParams | types.ElicitRequestURLParams
    ) -> types.ElicitResult:
        """Ask the user during the call, as in the older protocol."""
        return await self._context.session.send_request(
            types.ElicitRequest(params=params),
            types.ElicitResult,
            metadata=ServerMessageMetadata(related_request_id=self._context.request_id),
        )


def elicited_by(response: Any) -> types.ElicitResult:
    """Return the answer of a user from the host's response."""
    if not isinstance(response, types.ElicitResult | dict):
        response = response.model_dump(by_alias=True, exclude_none=True)
    return types.ElicitResult.model_validate(response)


# -- handles: the names of tasks --------------------------------------------------------------


MAC_LENGTH = 22
"""The number of hexadecimal digits of the authentication code that are part of a handle."""


class UnknownHandle(Exception):
    """The handle was not made here, or not for this caller."""

    def __init__(self) -> None:
        super().__init__(
            "there is no such task; use the name that the tool returned when it started the task"
        )


class Handles:
    """Names tasks as ``agent.task``, and with a ``key`` binds each name to its caller.

    If several callers share the agents' credentials, no caller can name another's task. A
    ``principal`` of ``None`` is the only host of a connection: its names are not bound.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key

    def make(self, agent: str, task_id: str, principal: str | None = "") -> str:
        """Return the handle of a task."""
        named = f"{agent}.{task_id}"
        if not self._key or principal is None:
            return named
        return f"{named}.{self._mac(named, principal)}"

    def read(self, handle: str, principal: str | None = "") -> tuple[str, str]:
        """Return the agent and the id of the task. Raises ``UnknownHandle``."""
        named = handle
        if self._key and principal is not None:
            named, _, mac = handle.rpartition(".")
            if not hmac.compare_digest(mac.encode(), self._mac(named, principal).encode()):
                raise UnknownHandle
        agent, _, task_id = named.partition(".")
        if not agent or not task_id:
            raise UnknownHandle
        return agent, task_id

    def _mac(self, named: str, principal: str) -> str:
        text = f"{len(principal)}:{principal}{named}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[:MAC_LENGTH]


# -- tasks of the extension -------------------------------------------------------------------


POLL_MS = 1000
"""How often a host should ask for a task, in ms."""


def created(handle: str, task: Task) -> dict[str, Any]:
    """Return the result of a call that continues as a task."""
    found = described(handle, task)
    return {**found, "resultType": "task", "status": "working"}


def described(handle: str, task: Task) -> dict[str, Any]:
    """Return the members that the extension requires of every task."""
    updated = task.status.timestamp
    said = "" if task.status.message is None else task.status.message.text
    at = _text(updated) if updated is not None else _created_at(task.id)
    return {
        "taskId": handle,
        "status": _STATUS.get(task.state, "working"),
        **({"statusMessage": said[:2000]} if said else {}),
        "createdAt": _created_at(task.id) or at,
        "lastUpdatedAt": at or _now(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _created_at(task_id: str) -> str:
    """Return the creation time of a task, from its id if possible (UUID version 7)."""
    try:
        found = UUID(task_id)
    except ValueError:
        return ""
    if found.version != 7:
        return ""
    return _text(datetime.datetime.fromtimestamp((found.int >> 80) / 1000, datetime.UTC))


def _now() -> str:
    return _text(datetime.datetime.now(datetime.UTC))


def _text(at: datetime.datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_STATUS = {
    TaskState.INPUT_REQUIRED: "input_required",
    TaskState.AUTH_REQUIRED: "input_required",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "completed",  # the result is marked as an error
    TaskState.REJECTED: "completed",
    TaskState.CANCELED: "cancelled",
}
