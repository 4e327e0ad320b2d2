"""The scripted server over gRPC: one agent, whose task has an artifact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parley.conformance.client_forms import CONTEXT_ID, TASK_ID
from parley.conformance.client_server import MAX_REQUESTS, ReceivedCall, Visit
from parley.model.operations import Operation
from parley.model.parts import Artifact, Part
from parley.model.service import StreamItem
from parley.model.struct import encode
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.wire import versions

_IDS: dict[str, Any] = {"task_id": TASK_ID, "context_id": CONTEXT_ID}


@asynccontextmanager
async def grpc_agent(visit: Visit, said: str, version: str) -> AsyncIterator[None]:
    """Serve an agent over gRPC for a visit: ``visit.grpc`` is where. Needs the extra ``grpc``.

    What is received is kept in the form of 1.0, whatever the ``version``.
    """
    import grpc

    codec = versions.dialect(version).grpc()
    task = Task(
        id=TASK_ID,
        context_id=CONTEXT_ID,
        status=TaskStatus(state=TaskState.COMPLETED),
        artifacts=(Artifact(artifact_id="answer", parts=(Part(text=said),)),),
    )
    story: list[Event] = [
        Task(id=TASK_ID, context_id=CONTEXT_ID, status=TaskStatus(state=TaskState.WORKING)),
        TaskArtifactUpdateEvent(**_IDS, artifact=task.artifacts[0]),
        TaskStatusUpdateEvent(**_IDS, status=task.status),
    ]

    def handler(rpc: str, operation: Operation) -> Any:
        def heard(data: bytes, context: Any) -> None:
            headers = {key: str(value) for key, value in context.invocation_metadata()}
            request = ReceivedCall(
                method="GRPC",
                path=f"/{codec.service}/{rpc}",
                headers=headers,
                body=encode(codec.read_request(operation, data)),
                operation=operation.name,
                at=asyncio.get_running_loop().time(),
            )
            if len(visit.requests) < MAX_REQUESTS:
                visit.requests.append(request)

        async def answer(data: bytes, context: Any) -> bytes:
            heard(data, context)
            return codec.write_result(operation, task)

        async def stream(data: bytes, context: Any) -> AsyncIterator[bytes]:
            heard(data, context)
            for event in story:
                yield codec.write_event(StreamItem(event))

        if operation.streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(answer)

    handlers = {rpc: handler(rpc, operation) for rpc, operation in codec.methods.items()}
    service = grpc.method_handlers_generic_handler(codec.service, handlers)
    server = grpc.aio.server(handlers=(service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    visit.grpc = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        await server.stop(None)
