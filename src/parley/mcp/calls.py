"""Calls of agents for hosts: a message or a task, followed until it ends, asks, or takes long.

A call knows its host (``HostRequest``), names its task for it (``Handles``), and passes on what the
agent asks (``Asked``).
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from mcp import MCPError, types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from parley.agent.tools.tool import ToolResult
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.extensions.questions import auth_request, question
from parley.extensions.usage import run_progress
from parley.llm.remote_skills import RemoteQuestion, result_of
from parley.mcp.agents import (
    WRAPPED_ANSWER,
    WRAPPED_RESULT,
    BridgedAgent,
    BridgedAgents,
    SkillTool,
    form_schema,
)
from parley.mcp.content import blocks_of
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
"""How long the cancellation of a call waits for its task to be canceled."""

TASK_SECONDS = 2.0
"""After how many seconds a call is a task, for hosts that take tasks."""

Answer = types.CallToolResult | types.InputRequiredResult | dict[str, Any]


class Running(Exception):
    """A task continues after the time limit of a call."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(task_id)


class AgentCalls:
    """Calls agents for hosts. ``wait`` is how long a call takes at most, in seconds."""

    def __init__(self, agents: BridgedAgents, handles: Handles, wait: float) -> None:
        self.agents = agents
        self.handles = handles
        self.wait = wait

    # -- calls ---------------------------------------------------------------------------------

    async def call(
        self,
        host: HostRequest,
        agent: BridgedAgent,
        message: Mapping[str, Any] | None,
        *,
        tool: SkillTool | None = None,
        task_id: str = "",
        wait: float | None = None,
    ) -> Answer:
        """Send a message, or follow a task without one, and return the answer for the host.

        The answer is the result, the agent's question, or how to follow a task that takes longer.
        """
        limit = self.wait if wait is None else wait
        if host.takes_tasks and tool is not None:
            limit = min(limit, TASK_SECONDS)
        try:
            async with self.agents.connected(agent, host.credentials) as remote:
                while True:
                    try:
                        answer = await self._followed(host, remote, message, task_id, limit)
                        return called(result_of(answer), tool)
                    except RemoteQuestion as question:
                        task = question.task
                    asked, task_id = asked_by(task), task.id
                    if host.is_modern or not asked.can_be_asked(host.capabilities):
                        return self._asks(host, agent, task, asked, tool)
                    given = await host.elicit(asked.params)
                    if given.action != "accept":
                        return await self.declined(host, agent, remote, task, given.action, tool)
                    message = None if asked.is_auth else asked.content(given.content or {})
        except Running as running:
            return await self._goes_on(host, agent, running.task_id, tool)
        except (A2AError, ClientError, ValueError) as error:  # such as nothing to send
            return failed(f"{agent.card.name if agent.card else agent.slug}: {error}")

    async def _followed(
        self,
        host: HostRequest,
        remote: RemoteAgent,
        message: Mapping[str, Any] | None,
        task_id: str,
        limit: float,
    ) -> Task | Message:
        """Return the answer. Raises ``Running`` after ``limit`` seconds, once the task is known.

        A call that is cancelled cancels the task.
        """
        began = asyncio.get_running_loop().time()
        direct: Message | None = None
        if message is None:
            task = await remote.get(task_id)
            if task.state.is_terminal or task.state is TaskState.INPUT_REQUIRED:
                return task
            stream = remote.subscribe(task_id)
        else:
            stream = remote.stream(**{"task_id": task_id or None, **message})
        known = task_id
        try:
            async with asyncio.timeout(None) as deadline:
                if known:
                    deadline.reschedule(began + limit)
                async with stream as events:
                    async for event in events:
                        if isinstance(event, Message):
                            direct = event
                            break
                        if not known:
                            known = events.task_id
                            deadline.reschedule(began + limit)
                        if said := progress_of(event):
                            await host.progress(said)
                        if _waits(event):
                            break
        except TimeoutError:
            if not deadline.expired():
                raise
            raise Running(known) from None
        except asyncio.CancelledError:
            if known:
                await _cancel(remote, known)
            raise
        return direct if direct is not None else await remote.get(known)

    async def declined(
        self,
        host: HostRequest,
        agent: BridgedAgent,
        remote: RemoteAgent,
        task: Task,
        action: str,
        tool: SkillTool | None,
    ) -> types.CallToolResult:
        """Return the answer for a host whose user did not answer: declining ends the task."""
        if action == "decline":
            await _cancel(remote, task.id)
            return failed("The user declined to answer, so the task was canceled.")
        asked = asked_by(task)
        handle = self.handle(host, agent, task.id, tool)
        return note(f"The user has not answered. {asked.said(handle)}", handle, task.state, tool)

    # -- answers before the result -------------------------------------------------------------

    def _asks(
        self,
        host: HostRequest,
        agent: BridgedAgent,
        task: Task,
        asked: Asked,
        tool: SkillTool | None,
    ) -> Answer:
        handle = self.handle(host, agent, task.id, tool)
        if host.is_modern and asked.can_be_asked(host.capabilities):
            request = types.ElicitRequest(params=asked.params)
            return types.InputRequiredResult(
                input_requests={asked.key: request}, request_state=handle
            )
        return note(asked.said(handle), handle, task.state, tool)

    async def _goes_on(
        self, host: HostRequest, agent: BridgedAgent, task_id: str, tool: SkillTool | None
    ) -> Answer:
        handle = self.handle(host, agent, task_id, tool)
        if host.takes_tasks and tool is not None:
            async with self.agents.connected(agent, host.credentials) as remote:
                return created(handle, await remote.get(task_id))
        text = (
            f"The task {handle} is still at work. Wait for it with follow_task(task={handle!r}), "
            f"or stop it with cancel_task(task={handle!r})."
        )
        return note(text, handle, TaskState.WORKING, tool)

    async def start(
        self, host: HostRequest, tool: SkillTool, arguments: Mapping[str, Any]
    ) -> types.CallToolResult:
        """Start a task, and return its handle at once; a direct answer is the result."""
        agent = tool.agent
        async with self.agents.connected(agent, host.credentials) as remote:
            answer = await remote.send(**tool.message(arguments), return_immediately=True)
        if isinstance(answer, Message) or answer.state.is_terminal:
            return called(result_of(answer), None)
        handle = self.handle(host, agent, answer.id, tool)
        text = f"Started the task {handle}: follow it with follow_task, stop it with cancel_task."
        return note(text, handle, answer.state, None)

    def handle(
        self, host: HostRequest, agent: BridgedAgent, task_id: str, tool: SkillTool | None
    ) -> str:
        """Return how a host names a task; it names a tool too whose results have a schema."""
        has_schema = tool is not None and tool.output_schema is not None
        name = f"{agent.slug}/{tool.name}" if tool is not None and has_schema else agent.slug
        return self.handles.make(name, task_id, host.principal)

    def named(
        self, host: HostRequest, handle: object
    ) -> tuple[BridgedAgent, str, SkillTool | None]:
        """Return the agent, the id and the tool of a task. Raises ``MCPError``."""
        try:
            name, task_id = self.handles.read(str(handle), host.principal)
        except UnknownHandle as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        slug, _, tool = name.partition("/")
        agent = self.agents.of(slug)
        if agent is None:
            raise MCPError(types.INVALID_PARAMS, str(UnknownHandle()))
        return agent, task_id, self.agents.tools.get(tool)


async def _cancel(remote: RemoteAgent, task_id: str) -> None:
    """Cancel a task, also while the call itself is cancelled. What fails is logged."""

    async def cancel() -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await remote.cancel(task_id)
        except TaskNotCancelableError:
            pass  # it has ended
        except (A2AError, ClientError, TimeoutError) as error:
            log.warning("the task %s is not canceled: %s", task_id, error)

    work = asyncio.ensure_future(cancel())
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            continue  # the cancellation continues, for CANCEL_SECONDS at most


def _waits(event: Event) -> bool:
    """Return whether a task waits for something that its caller does."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state is TaskState.AUTH_REQUIRED
    return False


def progress_of(event: Event) -> str:
    """Return what an event tells of how a task goes on, empty for nothing."""
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
    """Return the result of an agent as that of a tool."""
    data = result.data
    if tool is not None and tool.output_schema is not None and not result.is_error:
        if tool.wraps_result:
            data = {WRAPPED_RESULT: result.text if data is None else data}
        if data is None:
            return failed(f"{tool.name} returned no data, unlike its card says: {result.text}")
    elif data is not None and not isinstance(data, dict):
        data = {WRAPPED_RESULT: data}  # hosts of the older protocol take objects only
    return types.CallToolResult(
        content=blocks_of(result.parts), structured_content=data, is_error=result.is_error
    )


def failed(text: str) -> types.CallToolResult:
    """Return a result that is an error."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def note(text: str, handle: str, state: TaskState, tool: SkillTool | None) -> types.CallToolResult:
    """Return a result that is none yet. For a tool with a result schema it has to be an error."""
    has_schema = tool is not None and tool.output_schema is not None
    data = {"task": handle, "state": state.value}
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        structured_content=None if has_schema else data,
        is_error=has_schema,
    )


# -- the request of a host --------------------------------------------------------------------


TASKS = "io.modelcontextprotocol/tasks"
"""The extension of MCP for long tasks."""

SHOWN_CHARACTERS = 2000
"""How many characters a notification of progress has."""

MOST_PROGRESS = 10_000
"""How many notifications of progress a call sends."""


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
        """Return who asks, as far as that is known: tasks are bound to it.

        Over stdio ``principal`` is ``None``: one host has the connection.
        """
        token = get_access_token()
        if token is not None:
            return repr(principal_components(token))
        if self.credentials:
            return hashlib.sha256(repr(sorted(self.credentials.items())).encode()).hexdigest()
        return ""

    @property
    def is_modern(self) -> bool:
        """Whether questions are results that the host answers by calling again."""
        return self._context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities | None:
        """What the host says that it can do."""
        return self._context.session.client_capabilities

    @property
    def takes_tasks(self) -> bool:
        """Whether a long call may return a task of the extension."""
        found = self.capabilities
        return self.is_modern and bool(found and found.extensions and TASKS in found.extensions)

    async def progress(self, text: str) -> None:
        """Tell the host how a call goes on, if it wants to know."""
        if self._progress < MOST_PROGRESS:
            self._progress += 1
            await self._context.session.report_progress(
                self._progress, None, text[:SHOWN_CHARACTERS]
            )

    async def elicit(
        self, params: types.ElicitRequestFormParams | types.ElicitRequestURLParams
    ) -> types.ElicitResult:
        """Ask the user in the middle of the call, as the older protocol does."""
        session, request_id = self._context.session, self._context.request_id
        if isinstance(params, types.ElicitRequestURLParams):
            return await session.elicit_url(
                params.message, params.url, params.elicitation_id or "", request_id
            )
        return await session.elicit_form(params.message, params.requested_schema, request_id)


# -- handles: the names of tasks --------------------------------------------------------------


MAC_LENGTH = 22
"""How many hexadecimal digits of the code are part of a handle."""


class UnknownHandle(Exception):
    """A handle that was not made here, or not for this caller."""

    def __init__(self) -> None:
        super().__init__("there is no such task; its name is what the tool that started it said")


class Handles:
    """Names tasks as ``agent.task``, and with a ``key`` binds each name to its caller.

    Where several callers share the agents' credentials, nobody can name a task of another. A
    ``principal`` of ``None`` is the one host of a connection that no other has: its names are not
    bound.
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


# -- questions, as elicitations and as text ---------------------------------------------------


ANSWER_TASK = "answer_task"


class Asked(NamedTuple):
    """What a task asks: its text, its form, how the fields are the answer, or an address."""

    key: str
    text: str
    form: dict[str, Any]
    kind: str
    url: str = ""
    is_auth: bool = False

    @property
    def params(self) -> types.ElicitRequestFormParams | types.ElicitRequestURLParams:
        """The question as an elicitation."""
        if self.url:
            return types.ElicitRequestURLParams(
                message=self.text, url=self.url, elicitation_id=self.key
            )
        return types.ElicitRequestFormParams(message=self.text, requested_schema=self.form)

    def content(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of ``RemoteAgent.send`` with the answer in a form."""
        value = given.get(WRAPPED_ANSWER)
        if self.kind == "fields":
            return {"data": dict(given)}
        if self.kind == "value":
            return {"data": value}
        if self.kind == "json":
            try:
                return {"data": msgspec.json.decode(str(value))}
            except msgspec.DecodeError:
                return {"message": str(value)}
        return {"message": str(value)}

    def can_be_asked(self, capabilities: types.ClientCapabilities | None) -> bool:
        """Return whether a host can ask its user: a secret never goes through a form."""
        found = None if capabilities is None else capabilities.elicitation
        if found is None:
            return False
        if self.url:
            return found.url is not None
        return not self.is_auth and (found.form is not None or found.url is None)

    def said(self, handle: str) -> str:
        """Return what is asked and how to answer, for a host without elicitation."""
        if self.is_auth:
            where = f" Open {self.url}." if self.url else ""
            return (
                f"The agent needs an authorization: {self.text}{where}\n"
                f"The task is {handle}; when it is done, follow it with follow_task."
            )
        lines = [f"The agent asks: {self.text}"]
        if self.kind != "text":
            lines.append(f"The answer fits: {msgspec.json.encode(self.form).decode()}")
        lines.append(
            f"Answer with the tool {ANSWER_TASK}: task={handle!r}, answer=... "
            "Ask the user if you do not know the answer."
        )
        return "\n".join(lines)


def asked_by(task: Task) -> Asked:
    """Return what a task asks its caller."""
    message = task.status.message
    key = f"q-{message.message_id if message else task.id}"[-64:]
    text = (message.text if message else "") or "What do you want?"
    if task.state is TaskState.AUTH_REQUIRED:
        needed = auth_request(task)
        url = needed.authorization_url if needed else ""
        return Asked(key, (needed.text if needed else "") or text, {}, "text", url, is_auth=True)
    typed = question(task)
    form, kind = form_schema(None if typed is None else typed.schema)
    if typed is not None:
        problems = "; ".join(f"{each.field}: {each.description}" for each in typed.problems)
        text = f"{typed.text or text}\n{problems}" if problems else typed.text or text
    return Asked(key, text, form, kind)


def given_as(answer: Any, asked: Asked) -> dict[str, Any]:
    """Return the options of ``RemoteAgent.send`` with an answer that a model wrote."""
    if asked.kind == "text":
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        return {"message": text}
    if isinstance(answer, str) and asked.kind == "fields":
        fields = asked.form["properties"]
        try:
            answer = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            if len(fields) != 1:
                return {"message": answer}
            answer = {next(iter(fields)): answer}
    elif isinstance(answer, str) and asked.kind == "json":
        try:
            answer = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return {"message": answer}
    elif isinstance(answer, dict) and asked.kind == "value" and answer.keys() == {WRAPPED_ANSWER}:
        answer = answer[WRAPPED_ANSWER]
    return {"data": answer}


# -- tasks of the extension -------------------------------------------------------------------


POLL_MS = 1000
"""How often a host should ask for a task, in ms."""


def created(handle: str, task: Task) -> dict[str, Any]:
    """Return the result of a call that goes on as a task."""
    found = described(handle, task)
    return {**found, "resultType": "task", "status": "working"}


def described(handle: str, task: Task) -> dict[str, Any]:
    """Return what the extension says of every task."""
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
    """Return when a task was created, if its id says so (UUID version 7)."""
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
    TaskState.FAILED: "completed",  # the result says that it is an error
    TaskState.REJECTED: "completed",
    TaskState.CANCELED: "cancelled",
}
