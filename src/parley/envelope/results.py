"""What a task or a direct reply says, as the results of a RESPONSE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parley.envelope.messages import Status
from parley.model.parts import Message, Part
from parley.model.struct import to_wire
from parley.model.tasks import Task, TaskState

_STATUSES = {
    TaskState.COMPLETED: Status.SUCCESS,
    TaskState.INPUT_REQUIRED: Status.INPUT_REQUIRED,
    TaskState.AUTH_REQUIRED: Status.AUTH_REQUIRED,
    TaskState.FAILED: Status.ERROR,
    TaskState.REJECTED: Status.ERROR,
    TaskState.CANCELED: Status.ERROR,
}


def status_of(task: Task) -> Status:
    """Return the status that stands for the state of a task; ``ACCEPTED`` for one that runs."""
    return _STATUSES.get(task.state, Status.ACCEPTED)


def results_of(answer: Task | Message) -> tuple[Any, ...]:
    """Return the results of a task or a direct reply, as JSON values.

    A task that waits for its caller has its question. Others have their artifacts, in their order;
    a completed one without any has what its agent said last. If all there is is one data part that
    is a list, its items are the results. Else each part is one: a data part is its value, a file
    ``{"file": <the part>}``, and a text ``{"text": ...}``, with the chunks of one artifact joined.
    """
    if isinstance(answer, Message):
        return _results([answer.parts])
    said = answer.status.message
    if answer.state.is_interrupted:
        return _results([said.parts] if said is not None else [])
    if answer.artifacts or answer.state is not TaskState.COMPLETED:
        return _results([artifact.parts for artifact in answer.artifacts])
    last = said or answer.final_message
    return _results([last.parts] if last is not None else [])


def _results(groups: Sequence[Sequence[Part]]) -> tuple[Any, ...]:
    match [part for parts in groups for part in parts]:
        case [Part(data=list(items))]:
            return tuple(items)
    return tuple(result for parts in groups for result in _each(parts))


def _each(parts: Sequence[Part]) -> list[Any]:
    found: list[Any] = []
    chunks: list[str] = []
    for part in parts:
        if part.text is not None:
            chunks.append(part.text)
            continue
        if chunks:
            found.append({"text": "".join(chunks)})
            chunks = []
        if part.is_file:
            found.append({"file": msgspec.to_builtins(part, enc_hook=to_wire)})
        else:
            found.append(part.data)
    return [*found, {"text": "".join(chunks)}] if chunks else found
