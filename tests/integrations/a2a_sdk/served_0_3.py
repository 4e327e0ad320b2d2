"""Executors as users write them for version 0.3.x of the official SDK: ``PORT STORE``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentProvider,
    AgentSkill,
    Artifact,
    DataPart,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TextPart,
    UnsupportedOperationError,
)
from a2a.utils import new_agent_parts_message, new_agent_text_message, new_task, new_text_artifact
from a2a.utils.errors import ServerError

import parley
from parley import Caller, CardDetails
from parley.integrations import a2a_sdk
from parley.security import ApiKey

HERE = Path(sys.argv[2].removeprefix("sqlite:///")).parent


class Hello(AgentExecutor):
    """Replies with a message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        said = f"Hello {context.get_user_input()}"
        await event_queue.enqueue_event(new_agent_text_message(said, context.context_id))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise Exception("cancel not supported")


class Report(AgentExecutor):
    """Works for long, and reports its progress."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.submit()
        await updater.start_work(updater.new_agent_message([Part(root=TextPart(text="reading"))]))
        await updater.update_status(
            TaskState.working,
            updater.new_agent_message([Part(root=TextPart(text="writing"))]),
            metadata={"percent": 50},
        )
        for n in range(3):
            await updater.add_artifact(
                [Part(root=TextPart(text=f"chunk {n}. "))],
                artifact_id="text",
                name="report",
                append=n > 0,
                last_chunk=n == 2,
            )
        facts = Part(root=DataPart(data={"chunks": 3}))
        await updater.add_artifact([facts], name="facts", metadata={"kind": "x"})
        late = Part(root=TextPart(text="after the last."))
        await updater.add_artifact([late], artifact_id="text", append=True, last_chunk=True)
        await updater.complete(updater.new_agent_message([Part(root=TextPart(text="done"))]))
        await asyncio.sleep(0)
        (HERE / "tidied").touch()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


class Currency(AgentExecutor):
    """Asks for missing values."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text, task = context.get_user_input(), context.current_task
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if task.status.state == TaskState.input_required:
            if text == "slow" and not (HERE / "slow").exists():
                (HERE / "slow").touch()
                await asyncio.Event().wait()
            first = task.history[0].parts[0].root.text
            said = f"{first} in {text}, after {len(task.history)} messages"
            said += f", at {dict(context.metadata or {}).get('bank', 'no bank')}"
            await updater.add_artifact([Part(root=TextPart(text=said))], name="answer")
            await updater.complete()
        else:
            question = updater.new_agent_message([Part(root=TextPart(text="In which currency?"))])
            await updater.requires_input(question)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel(updater.new_agent_message([Part(root=TextPart(text="as you like"))]))


class Endless(AgentExecutor):
    """Works until it is canceled."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(new_task(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await asyncio.Event().wait()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        state = context.current_task.status.state.name
        await updater.cancel(
            updater.new_agent_message([Part(root=TextPart(text=f"stopped in {state}"))])
        )


class Failing(AgentExecutor):
    """Raises, fails or rejects, as the message says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        word = context.get_user_input()
        if word == "unsupported":
            raise ServerError(error=UnsupportedOperationError(message="not this one"))
        if word == "silent":
            return
        await event_queue.enqueue_event(new_task(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        said = updater.new_agent_message([Part(root=TextPart(text="it did not work"))])
        if word == "raise":
            raise ValueError("secret")
        if word == "foreign":
            await TaskUpdater(event_queue, "another", context.context_id).start_work()
        elif word == "reject":
            await updater.reject(said)
        elif word == "return":
            await updater.start_work()
        else:
            await updater.failed(said)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


class Auth(AgentExecutor):
    """Needs a login: elsewhere, or by the next message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if task.status.state == TaskState.auth_required:
            await updater.complete(
                updater.new_agent_message([Part(root=TextPart(text="logged in"))])
            )
            return
        await updater.requires_auth(
            updater.new_agent_message([Part(root=TextPart(text="log in, please"))])
        )
        if context.get_user_input() == "elsewhere":
            while not (HERE / "logged-in").exists():
                await asyncio.sleep(0.02)
            await updater.start_work()
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


class Context(AgentExecutor):
    """Reports its request context."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        call = context.call_context
        told = {
            "user": call.user.user_name,
            "authenticated": call.user.is_authenticated,
            "extensions": sorted(context.requested_extensions),
            "metadata": context.metadata,
            "message_metadata": context.message.metadata or {},
            "current": context.current_task is not None,
            "modes": list(context.configuration.accepted_output_modes),
            "ids": [context.task_id == context.message.task_id, bool(context.context_id)],
        }
        await event_queue.enqueue_event(new_agent_parts_message([Part(root=DataPart(data=told))]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


class Whole(AgentExecutor):
    """Enqueues a task that is already complete."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        related = [task.artifacts[0].name for task in context.related_tasks]
        said = new_agent_text_message("on the way", context.context_id)
        await event_queue.enqueue_event(
            Task(
                id=context.task_id,
                context_id=context.context_id,
                status=TaskStatus(state=TaskState.completed),
                artifacts=[new_text_artifact("result", f"all of it, after {related}")],
                history=[context.message, said],
            )
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


class Killed(AgentExecutor):
    """Writes half of its reply, waits to be killed, and writes all of it in the next run."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        current = context.current_task
        if current is None:
            await event_queue.enqueue_event(new_task(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([Part(root=TextPart(text="first "))], name="one")
        await event_queue.enqueue_event(
            TaskArtifactUpdateEvent(
                task_id=context.task_id,
                context_id=context.context_id,
                artifact=Artifact(
                    artifact_id="two", name="two", parts=[Part(root=TextPart(text="half"))]
                ),
            )
        )
        if current is None:
            await asyncio.Event().wait()
        found = f"{current.status.state.name} with {len(current.artifacts)} artifacts"
        said = f"{found}: {context.get_user_input()}"
        await updater.complete(updater.new_agent_message([Part(root=TextPart(text=said))]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


def card(name: str) -> AgentCard:
    """Return the card of an agent, with every field."""
    return AgentCard(
        name=name,
        description=f"The agent {name}",
        version="2.1",
        documentation_url="https://example.com/docs",
        provider=AgentProvider(organization="Example", url="https://example.com"),
        url="http://elsewhere.example",
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=False,
            extensions=[AgentExtension(uri="https://example.com/ext/v1", description="One")],
        ),
        default_input_modes=["text", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[
            AgentSkill(
                id="main",
                name="Main",
                description="All of it",
                tags=["a", "b"],
                examples=["Do it"],
                input_modes=["text/plain"],
            ),
            AgentSkill(id="other", name="Other", description="The rest", tags=["c"]),
        ],
    )


EXECUTORS = (Hello, Report, Currency, Endless, Failing, Auth, Context, Whole, Killed)
agents = [a2a_sdk.agent(kind(), card(kind.__name__)) for kind in EXECUTORS]
details = CardDetails(streaming=False, default_extensions=False, icon_url="https://example.com/i")
agents.append(a2a_sdk.agent(Hello(), card("Detailed"), details=details))
agents.append(a2a_sdk.agent(Hello(), card("Durable"), durable=True))
secured = card("Secured")
secured.security_schemes = {"key": {"type": "apiKey", "name": "X-Key", "in": "header"}}
secured = AgentCard.model_validate(secured.model_dump(by_alias=True) | {"security": [{"key": []}]})
agents.append(a2a_sdk.agent(Hello(), secured, verified_elsewhere=True))
try:
    a2a_sdk.agent(Hello(), secured)
except ValueError as error:
    agents[-1].description = str(error)
public, more = secured.model_copy(update={"name": "Extended"}), card("More for friends")
more.skills.append(AgentSkill(id="cellar", name="Cellar", description="Knows wines", tags=["wine"]))
more.capabilities.push_notifications = True
friends = ApiKey("header", "X-Key", name="key", keys=lambda _: Caller("ada"))
agents.append(a2a_sdk.agent(Hello(), public, extended_card=more, security=friends))


async def caller(scope: Any) -> Caller:
    """All callers are one user."""
    return Caller("ada", authenticated=True)


if __name__ == "__main__":
    parley.serve(agents, port=int(sys.argv[1]), store=sys.argv[2], drain=1.0, caller=caller)
