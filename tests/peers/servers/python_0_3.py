"""An agent on the official Python SDK's server of 0.3, as its users write one.

The interpreter of the peer's own environment runs it. It prints its address, then serves until its
standard input closes. The first word of the message selects the action, as in the other agents.
"""

import asyncio
import logging
import socket
import sys
from base64 import b64decode

import grpc
import httpx
import uvicorn
from a2a.grpc.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    FilePart,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task
from starlette.routing import Mount


class Agent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        words = context.get_user_input().split()
        task = context.current_task
        if task is None and words[0] == "hello":
            await event_queue.enqueue_event(
                new_agent_text_message("hello yourself", context_id=context.context_id)
            )
            return
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def say(text: str):
            return updater.new_agent_message([Part(root=TextPart(text=text))])

        if words[0] == "answer":
            await self.answer(updater, task, words[1], words[2:])
            return
        await updater.start_work(say("working on it"))
        match words[0]:
            case "draft":
                await updater.add_artifact(
                    [Part(root=TextPart(text="draft. "))], artifact_id="draft"
                )
                await updater.requires_input(say("which?"), final=True)
            case "report":
                await self.report(updater, count=int(words[1]), pause=float(words[2]))
                await updater.complete(say("done"))
            case "book":
                await updater.requires_input(say("where to?"), final=True)
            case "file":
                files = [p.root.file for p in context.message.parts if isinstance(p.root, FilePart)]
                told = [f"{len(b64decode(f.bytes))} bytes of {f.mime_type}" for f in files]
                await updater.add_artifact(
                    [Part(root=TextPart(text=", ".join(told)))], name="files"
                )
                await updater.complete()
            case "slow":
                await asyncio.Event().wait()
            case "fail":
                await updater.failed(say("it did not work"))
            case "raise":
                raise RuntimeError("a bug in the agent")
            case _:
                await updater.add_artifact(
                    [Part(root=TextPart(text=f"booked: {' '.join(words)}"))],
                    name="ticket",
                    last_chunk=True,
                )
                await updater.complete()

    async def answer(self, updater: TaskUpdater, task: Task, how: str, words: list[str]) -> None:
        """Go on with a task that asked; ``how`` says what comes first, and how it ends."""

        def say(text: str):
            return updater.new_agent_message([Part(root=TextPart(text=text))])

        match how:
            case "chunks":
                await self.report(updater, count=int(words[0]), pause=float(words[1]))
                await updater.complete()
            case "more":
                await updater.add_artifact(
                    [Part(root=TextPart(text="more. "))], artifact_id="draft", append=True
                )
                await updater.complete()
            case "again":
                await updater.start_work(say("thinking"))
                await updater.requires_input(say("and when?"), final=True)
            case "bare":
                await updater.complete()
            case "said":
                await updater.complete(say("that is it"))
            case "failed":
                await updater.failed(say("it did not work"))
            case "whole":
                state = TaskState(words[0].lower().replace("_", "-"))
                if state != task.status.state:
                    task = task.model_copy(update={"status": TaskStatus(state=state)})
                await updater.event_queue.enqueue_event(task)
                await self.report(updater, count=2, pause=0)
                await updater.complete()

    async def report(self, updater: TaskUpdater, count: int, pause: float) -> None:
        for number in range(count):
            await updater.add_artifact(
                [Part(root=TextPart(text=f"chunk {number}. "))],
                artifact_id="report",
                name="report.txt",
                append=number > 0,
                last_chunk=number == count - 1,
            )
            await asyncio.sleep(pause)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, grpc: str) -> AgentCard:
    return AgentCard(
        name="Official agent",
        description="An agent on the official SDK",
        version="1.0.0",
        url=f"{url}/",
        preferred_transport="JSONRPC",
        additional_interfaces=[
            AgentInterface(url=f"{url}/rest", transport="HTTP+JSON"),
            AgentInterface(url=grpc, transport="GRPC"),
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        supports_authenticated_extended_card=True,
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="all", name="All", description="Does it all", tags=["test"])],
    )


async def main() -> None:
    logging.disable()  # the agent fails on purpose
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    grpc_server = grpc.aio.server()
    grpc_port = grpc_server.add_insecure_port("127.0.0.1:0")
    shown = card(url, f"127.0.0.1:{grpc_port}")
    pushes = InMemoryPushNotificationConfigStore()
    async with httpx.AsyncClient() as http:
        handler = DefaultRequestHandler(
            agent_executor=Agent(),
            task_store=InMemoryTaskStore(),
            push_config_store=pushes,
            push_sender=BasePushNotificationSender(http, pushes),
        )
        add_A2AServiceServicer_to_server(GrpcHandler(shown, handler), grpc_server)
        app = A2AStarletteApplication(shown, handler, extended_agent_card=shown).build()
        rest = A2ARESTFastAPIApplication(shown, handler, extended_agent_card=shown).build()
        app.router.routes.append(Mount("/rest", rest))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off"))
        await grpc_server.start()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        server.force_exit = True
        await grpc_server.stop(None)
        await serving


asyncio.run(main())
