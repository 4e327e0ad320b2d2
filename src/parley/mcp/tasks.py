"""Long tasks, for hosts with the tasks extension of MCP (``io.modelcontextprotocol/tasks``)."""

from __future__ import annotations

from typing import Any

from mcp import MCPError, types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from pydantic import Field

from parley.client.errors import ClientError
from parley.llm.remote_skills import result_of
from parley.mcp.calls import AgentCalls, called
from parley.mcp.host import TASKS, HostRequest
from parley.mcp.questions import asked_by
from parley.mcp.task_values import described
from parley.model.errors import A2AError, TaskNotCancelableError, TaskNotFoundError
from parley.model.tasks import Task, TaskState


class TaskParams(types.RequestParams):
    """The parameters that name a task."""

    task_id: str = Field(alias="taskId", max_length=1000)


class TaskUpdateParams(TaskParams):
    """The answers to what a task asks."""

    input_responses: dict[str, dict[str, Any]] = Field(alias="inputResponses")


class TaskMethods:
    """The methods of the extension: get, update, cancel. The state is that of the agents."""

    def __init__(self, calls: AgentCalls, *, carries: bool) -> None:
        self._calls = calls
        self._carries = carries

    def add_to(self, server: Server[Any]) -> None:
        """Serve the methods."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskUpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def get(
        self, context: ServerRequestContext[Any, Any], params: TaskParams
    ) -> dict[str, Any]:
        """Return a task with its result, or with what it asks."""
        host, task = await self._task(context, params.task_id)
        tool = self._calls.named(host, params.task_id)[2]
        found = described(params.task_id, task)
        if task.state in (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED):
            asked = asked_by(task)
            if asked.can_be_asked(host.capabilities):
                request = types.ElicitRequest(params=asked.params)
                found["inputRequests"] = {
                    asked.key: request.model_dump(mode="json", by_alias=True, exclude_none=True)
                }
            else:
                found["status"] = "working"  # this host cannot ask; the message says how to answer
            found["statusMessage"] = asked.said(params.task_id)
        elif task.state.is_terminal and task.state is not TaskState.CANCELED:
            result = called(result_of(task), tool)
            found["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return found

    async def update(
        self, context: ServerRequestContext[Any, Any], params: TaskUpdateParams
    ) -> dict[str, Any]:
        """Answer what a task asks. An answer to another question is left out."""
        host, task = await self._task(context, params.task_id)
        agent, task_id, _ = self._calls.named(host, params.task_id)
        if task.state is TaskState.INPUT_REQUIRED:
            asked = asked_by(task)
            if (given := params.input_responses.get(asked.key)) is not None:
                answer = types.ElicitResult.model_validate(given)
                async with self._calls.agents.connected(agent, host.credentials) as remote:
                    if answer.action == "accept":
                        await remote.send(
                            **asked.content(answer.content or {}),
                            task_id=task_id,
                            return_immediately=True,
                        )
                    elif answer.action == "decline":
                        await remote.cancel(task_id)
        return {}

    async def cancel(
        self, context: ServerRequestContext[Any, Any], params: TaskParams
    ) -> dict[str, Any]:
        """Cancel a task; one that has ended stays as it is."""
        host, _ = await self._task(context, params.task_id)
        agent, task_id, _ = self._calls.named(host, params.task_id)
        try:
            async with self._calls.agents.connected(agent, host.credentials) as remote:
                await remote.cancel(task_id)
        except TaskNotCancelableError:
            pass
        except (A2AError, ClientError) as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        return {}

    async def _task(
        self, context: ServerRequestContext[Any, Any], handle: str
    ) -> tuple[HostRequest, Task]:
        host = HostRequest(context, carries=self._carries)
        if not host.takes_tasks:
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"the request does not declare the extension {TASKS}",
                data={"requiredCapabilities": {"extensions": {TASKS: {}}}},
            )
        agent, task_id, _ = self._calls.named(host, handle)
        try:
            async with self._calls.agents.connected(agent, host.credentials) as remote:
                return host, await remote.get(task_id)
        except TaskNotFoundError:
            raise MCPError(types.INVALID_PARAMS, "there is no such task") from None
        except (A2AError, ClientError) as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
