"""What servers answer, decoded and checked: after the clock has stopped, never while it runs.

A rate counts only if every answer was right, so each is looked at: its status and type, its shape,
its text, which request it belongs to; of a stream, every event and their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

NUMBER = b"#########"
"""Stands in a prepared request for its number, which is as long."""
FIRST = 100_000_000
TEXT = "hello "
MESSAGES = 20
"""Messages of the task that is read."""
FIXED_TEXT = "hello"
FIXED_CHUNK = "chunk 10000 "
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Unexpected(Exception):
    """The server answered with something else than what is measured."""


class Part(msgspec.Struct):
    text: str


class Message(msgspec.Struct, rename="camel"):
    message_id: str
    role: str
    parts: list[Part]


class Status(msgspec.Struct):
    state: str


class Artifact(msgspec.Struct, rename="camel"):
    artifact_id: str
    parts: list[Part]


class Task(msgspec.Struct, rename="camel"):
    id: str
    context_id: str
    status: Status
    artifacts: list[Artifact] = []
    history: list[Message] = []


class Sent(msgspec.Struct):
    message: Message | None = None
    task: Task | None = None


class SendAnswer(msgspec.Struct):
    jsonrpc: str
    id: int
    result: Sent


class GetAnswer(msgspec.Struct):
    jsonrpc: str
    id: int
    result: Task


class StatusUpdate(msgspec.Struct, rename="camel"):
    task_id: str
    status: Status


class ArtifactUpdate(msgspec.Struct, rename="camel"):
    task_id: str
    artifact: Artifact
    append: bool = False


class Result(msgspec.Struct, rename="camel"):
    task: Task | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


class Event(msgspec.Struct):
    jsonrpc: str
    id: int
    result: Result


SEND = msgspec.json.Decoder(SendAnswer)
GET = msgspec.json.Decoder(GetAnswer)
EVENT = msgspec.json.Decoder(Event)


def body_of(data: bytes, media_type: bytes = b"application/json") -> bytes | None:
    """Return the body of the HTTP response in ``data`` when it is all there.

    Raises ``Unexpected`` unless it is a 200 of this type.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower() + b"\r\n"
    if not head.startswith(b"http/1.1 200 ") or b"\r\ncontent-type: " + media_type not in head:
        raise Unexpected(data[:600].decode(errors="replace"))
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        length = int(head[at + 17 : head.find(b"\r\n", at + 17)])
        return data[end + 4 :] if len(data) >= end + 4 + length else None
    if b"\r\ntransfer-encoding: chunked" not in head:
        raise Unexpected(f"a reply without a length: {head.decode(errors='replace')}")
    return joined(data, end + 2) if data.endswith(LAST_CHUNK) else None


def joined(data: bytes, at: int) -> bytes:
    """Return a body that came in chunks; ``at`` is the end of the line before its first size."""
    pieces = []
    while True:
        line = data.find(b"\r\n", at + 2)
        size = int(data[at + 2 : line].partition(b";")[0], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(data[line + 2 : line + 2 + size])
        at = line + 2 + size
        if data[at : at + 2] != b"\r\n":
            raise Unexpected(f"a chunk that does not end: {data[at - 60 : at + 20]!r}")


def decoded(decoder: msgspec.json.Decoder, body: bytes):
    """Return a decoded answer. Raises ``Unexpected`` for any other shape."""
    try:
        answer = decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Unexpected(f"{error}: {body[:600].decode(errors='replace')}") from None
    if answer.jsonrpc != "2.0":
        raise Unexpected(f"JSON-RPC {answer.jsonrpc}")
    return answer


def demand(what: bool, body: bytes) -> None:
    """Raise ``Unexpected``, with the answer, unless it is so."""
    if not what:
        raise Unexpected(body[:900].decode(errors="replace"))


def check_replies(answers: Sequence[tuple[int, bytes]]) -> None:
    """Check direct replies: each has the id and the text of its request, and an id of its own."""
    ids = set()
    for number, body in answers:
        answer = decoded(SEND, body)
        said = answer.result.message
        demand(answer.id == number and said is not None and answer.result.task is None, body)
        demand(said.role == "ROLE_AGENT" and texts(said) == [f"{TEXT}{number}"], body)
        ids.add(said.message_id)
    demand(len(ids) == len(answers) and "" not in ids, b"two replies have one id")


def check_tasks(answers: Sequence[tuple[int, bytes]]) -> None:
    """Check finished tasks: each has one artifact with the text of its request."""
    ids = set()
    for number, body in answers:
        answer = decoded(SEND, body)
        task = answer.result.task
        demand(answer.id == number and task is not None, body)
        demand(task.status.state == "TASK_STATE_COMPLETED" and task.context_id != "", body)
        demand([texts(artifact) for artifact in task.artifacts] == [[f"{TEXT}{number}"]], body)
        ids.add(task.id)
    demand(len(ids) == len(answers) and "" not in ids, b"two tasks have one id")


def check_read(answers: Sequence[tuple[int, bytes]]) -> None:
    """Check a task that was read: all of its messages are there, in order."""
    expected = [f"message {n} of a conversation" for n in range(1, MESSAGES)]
    for _, body in dict.fromkeys((0, body) for _, body in answers):
        task = decoded(GET, body).result
        demand(task.status.state == "TASK_STATE_COMPLETED", body)
        demand(len(task.history) == MESSAGES, body)
        demand([text for said in task.history[1:] for text in texts(said)] == expected, body)
        demand(task.history[0].role == "ROLE_USER", body)
        demand({said.role for said in task.history[1:]} == {"ROLE_AGENT"}, body)
        demand(len({said.message_id for said in task.history}) == MESSAGES, body)


def check_fixed(answers: Sequence[tuple[int, bytes]]) -> None:
    """Check the answers of the bare server: all are the same, and a reply."""
    for _, body in dict.fromkeys((0, body) for _, body in answers):
        said = decoded(SEND, body).result.message
        demand(said is not None and texts(said) == [FIXED_TEXT], body)


CHECKS = {"reply": check_replies, "task": check_tasks, "get": check_read, "fixed": check_fixed}


def texts(of: Message | Artifact) -> list[str]:
    """Return the texts of a message or an artifact."""
    return [part.text for part in of.parts]


def events_of(data: bytes) -> Iterable[bytes]:
    """Return the data of each event of a whole response."""
    body = data[data.find(b"\r\n\r\n") + 4 :]
    if (whole := body_of(data, b"text/event-stream")) is not None:
        body = whole
    for frame in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:] for line in frame.split(b"\n") if line.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines)


def check_stream(data: bytes, chunks: int) -> None:
    """Check one whole stream: the task, its chunks in order, its end, and nothing else."""
    number, task_id, state = 0, "", ""
    for body in events_of(data):
        result = decoded(EVENT, body).result
        demand(state != "TASK_STATE_COMPLETED", body)
        if result.artifact_update is not None:
            update = result.artifact_update
            demand(texts(update.artifact) == [f"chunk {number} "], body)
            demand(update.append == (number > 0) and update.task_id == task_id, body)
            number += 1
        elif result.status_update is not None:
            state = result.status_update.status.state
            demand(task_id in ("", result.status_update.task_id), body)
            task_id = result.status_update.task_id
        else:
            demand(result.task is not None and task_id == "", body)
            task_id, state = result.task.id, result.task.status.state
    if number != chunks or state != "TASK_STATE_COMPLETED":
        raise Unexpected(f"{number} of {chunks} chunks, then {state}: {data[-300:]!r}")


def check_fixed_stream(data: bytes, chunks: int) -> None:
    """Check a stream of the bare server: the same event, so many times."""
    events = list(events_of(data))
    demand(len(events) == chunks, data[-300:])
    for body in dict.fromkeys(events):
        update = decoded(EVENT, body).result.artifact_update
        demand(update is not None and texts(update.artifact) == [FIXED_CHUNK], body)
