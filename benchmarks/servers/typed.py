"""What reading and writing the protocol costs at the least: one typed decode, one encode.

Between the two is the same work as an agent's, in a dict: no store, no log, no check.

Arguments: the port, and what it does: reply (which is what it does without), task, stream, wait or
talk.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin


class Part(msgspec.Struct):
    """A part of a message."""

    text: str = ""


class Message(msgspec.Struct, rename="camel", omit_defaults=True):
    """A message."""

    message_id: str
    role: str
    parts: list[Part]
    context_id: str = ""


class Params(msgspec.Struct):
    """What SendMessage takes, and GetTask."""

    message: Message | None = None
    id: str = ""


class Request(msgspec.Struct):
    """A request of JSON-RPC."""

    jsonrpc: str
    id: int
    method: str
    params: Params


class Status(msgspec.Struct):
    """The status of a task."""

    state: str
    timestamp: str


class Artifact(msgspec.Struct, rename="camel", omit_defaults=True):
    """An artifact."""

    artifact_id: str
    parts: list[Part]
    name: str = ""


class Task(msgspec.Struct, rename="camel"):
    """A task."""

    id: str
    context_id: str
    status: Status
    history: list[Message]
    artifacts: list[Artifact] = []


class StatusUpdate(msgspec.Struct, rename="camel"):
    """An event: the status of a task."""

    task_id: str
    context_id: str
    status: Status


class ArtifactUpdate(msgspec.Struct, rename="camel", omit_defaults=True):
    """An event: an artifact, or a chunk of one."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False


class Result(msgspec.Struct, rename="camel", omit_defaults=True):
    """What SendMessage answers, and one event of a stream."""

    message: Message | None = None
    task: Task | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


class Response(msgspec.Struct):
    """An answer of JSON-RPC."""

    jsonrpc: str
    id: int
    result: Result


class TaskResponse(msgspec.Struct):
    """An answer to GetTask."""

    jsonrpc: str
    id: int
    result: Task


DECODER = msgspec.json.Decoder(Request)
ENCODER = msgspec.json.Encoder()
JSON = (b"content-type", b"application/json")
EVENTS = [(b"content-type", b"text/event-stream")]
TASKS: dict[str, Task] = {}


def status(state: str) -> Status:
    """Return a status of now."""
    return Status(f"TASK_STATE_{state}", datetime.now(UTC).isoformat(timespec="milliseconds"))


def begun(said: Message) -> Task:
    """Return a new task, which works."""
    said.context_id = said.context_id or str(uuid.uuid4())
    task = Task(str(uuid.uuid4()), said.context_id, status("SUBMITTED"), [said])
    TASKS[task.id] = task
    task.status = status("WORKING")
    return task


def replied(said: Message) -> Result:
    """Answer with the text of a message."""
    context = said.context_id or str(uuid.uuid4())
    return Result(message=Message(str(uuid.uuid4()), "ROLE_AGENT", said.parts, context))


def worked(said: Message) -> Result:
    """Make a task, with the text as its artifact, and end it."""
    task = begun(said)
    task.artifacts = [Artifact(str(uuid.uuid4()), said.parts, "result")]
    task.status = status("COMPLETED")
    return Result(task=task)


def talked(said: Message) -> Result:
    """Make a task with many messages, and end it."""
    task = begun(said)
    for number in range(1, 20):
        parts = [Part(f"message {number} of a conversation")]
        task.history.append(Message(str(uuid.uuid4()), "ROLE_AGENT", parts, task.context_id))
    task.status = status("COMPLETED")
    return Result(task=task)


async def streamed(request: Request, send, *, for_ever: bool) -> None:
    """Stream a task: its begin, as many chunks as are asked for, its end."""
    said = request.params.message
    task = begun(said)

    async def event(result: Result) -> None:
        data = b"data: %b\n\n" % ENCODER.encode(Response("2.0", request.id, result))
        await send({"type": "http.response.body", "body": data, "more_body": True})

    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
    await event(Result(task=task))
    if for_ever:
        await asyncio.Event().wait()
    for number in range(int(said.parts[0].text)):
        chunk = Artifact("report", [Part(f"chunk {number} ")])
        update = ArtifactUpdate(task.id, task.context_id, chunk, number > 0)
        await event(Result(artifact_update=update))
    task.status = status("COMPLETED")
    ended = StatusUpdate(task.id, task.context_id, task.status)
    await event(Result(status_update=ended))
    await send({"type": "http.response.body", "body": b""})


ANSWERS = {"reply": replied, "task": worked, "talk": talked}


def app_that(does: str):
    """Return the app that does one of the things."""
    answer = ANSWERS.get(does, replied)

    async def app(scope, receive, send):
        body = b""
        more = True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        request = DECODER.decode(body)
        if request.method == "SendStreamingMessage":
            await streamed(request, send, for_ever=does == "wait")
            return
        if request.method == "GetTask":
            response = TaskResponse("2.0", request.id, TASKS[request.params.id])
        else:
            response = Response("2.0", request.id, answer(request.params.message))
        data = ENCODER.encode(response)
        headers = [JSON, (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    return app


if __name__ == "__main__":
    pin(0)
    app = app_that(sys.argv[2] if len(sys.argv) > 2 else "reply")
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
