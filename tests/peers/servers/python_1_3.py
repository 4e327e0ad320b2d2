"""An agent on the official SDK's server, as its users write one.

The interpreter of the peer's own environment runs it. It prints its address, then serves until its
standard input closes. The first word of the message selects the action.
"""

import asyncio
import logging
import socket
import sys

import grpc
import httpx
import uvicorn
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import (
    add_A2AServiceServicer_to_server as add_A2AServiceServicer_0_3_to_server,
)
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
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
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from starlette.applications import Starlette
from starlette.routing import Mount


class Agent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        words = context.get_user_input().split()
        task = context.current_task
        if task is None and words[0] == "hello":
            reply = new_text_message(
                "hello yourself", role=Role.ROLE_AGENT, context_id=context.context_id
            )
            await event_queue.enqueue_event(reply)
            return
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def say(text: str):
            return updater.new_agent_message([new_text_part(text)])

        if words[0] == "answer":
            await self.answer(updater, task, words[1], words[2:])
            return
        await updater.start_work(say("working on it"))
        match words[0]:
            case "draft":
                await updater.add_artifact([new_text_part("draft. ")], artifact_id="draft")
                await updater.requires_input(say("which?"))
            case "report":
                await self.report(updater, count=int(words[1]), pause=float(words[2]))
                await updater.complete(say("done"))
            case "book":
                await updater.requires_input(say("where to?"))
            case "file":
                files = [part for part in context.message.parts if part.raw]
                told = ", ".join(f"{len(part.raw)} bytes of {part.media_type}" for part in files)
                await updater.add_artifact([new_text_part(told)], name="files")
                await updater.complete()
            case "slow":
                await asyncio.Event().wait()
            case "fail":
                await updater.failed(say("it did not work"))
            case "raise":
                raise RuntimeError("a bug in the agent")
            case _:
                await updater.add_artifact(
                    [new_text_part(f"booked: {' '.join(words)}")], name="ticket", last_chunk=True
                )
                await updater.complete()

    async def answer(self, updater: TaskUpdater, task: Task, how: str, words: list[str]) -> None:
        """Go on with a task that asked; ``how`` says what comes first, and how it ends."""

        def say(text: str):
            return updater.new_agent_message([new_text_part(text)])

        match how:
            case "chunks":
                await self.report(updater, count=int(words[0]), pause=float(words[1]))
                await updater.complete()
            case "more":
                await updater.add_artifact(
                    [new_text_part("more. ")], artifact_id="draft", append=True
                )
                await updater.complete()
            case "again":
                await updater.start_work(say("thinking"))
                await updater.requires_input(say("and when?"))
            case "bare":
                await updater.complete()
            case "said":
                await updater.complete(say("that is it"))
            case "failed":
                await updater.failed(say("it did not work"))
            case "whole":
                state = TaskState.Value(f"TASK_STATE_{words[0]}")
                if state != task.status.state:
                    task.status.CopyFrom(TaskStatus(state=state))
                await updater.event_queue.enqueue_event(task)
                await self.report(updater, count=2, pause=0)
                await updater.complete()

    async def report(self, updater: TaskUpdater, count: int, pause: float) -> None:
        for number in range(count):
            await updater.add_artifact(
                [new_text_part(f"chunk {number}. ")],
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
        supported_interfaces=[
            AgentInterface(url=address, protocol_binding=binding, protocol_version=version)
            for version in ("1.0", "0.3")
            for binding, address in (
                ("JSONRPC", f"{url}/"),
                ("HTTP+JSON", f"{url}/rest"),
                ("GRPC", grpc),
            )
        ],
        capabilities=AgentCapabilities(
            streaming=True, push_notifications=True, extended_agent_card=True
        ),
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
            agent_card=shown,
            push_config_store=pushes,
            push_sender=BasePushNotificationSender(http, pushes),
            extended_agent_card=shown,
        )
        add_A2AServiceServicer_to_server(GrpcHandler(handler), grpc_server)
        add_A2AServiceServicer_0_3_to_server(CompatGrpcHandler(handler), grpc_server)
        rest = Starlette(routes=create_rest_routes(handler, enable_v0_3_compat=True))
        app = Starlette(
            routes=[
                *create_agent_card_routes(shown),
                *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
                Mount("/rest", rest),
            ]
        )
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
