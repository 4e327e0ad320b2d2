"""Matchers of events: they say what matters of an event, and leave the rest open.

A matcher equals what it matches, so ``assert events == [submitted(), working("..."), completed()]``
works, and so does ``assert task == completed(text="97.20")``. A text is a string, a compiled
pattern that is searched for, or anything else that equals the texts that are meant, such as
``containing("rate")``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part, text_of
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.testing.webhooks import event_of

ANY: Any = msgspec.UNSET
"""Stands for any value."""

SHOWN = 200
"""The most characters of a text that are shown."""


class Matcher:
    """Equals the events that it describes. ``differences`` says why it does not equal one."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str, /, **wanted: Any) -> None:
        self.kind = kind
        self.wanted = {key: value for key, value in wanted.items() if value is not ANY}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Matcher):
            return self.kind == other.kind and self.wanted == other.wanted
        return not self.differences(other)

    def __repr__(self) -> str:
        shown = [
            shorten(value) if key == "text" else f"{key}={shorten(value)}"
            for key, value in self.wanted.items()
        ]
        return f"{self.kind}({', '.join(shown)})"

    def differences(self, value: object) -> list[str]:
        """Return in what a value differs from the description; nothing if it fits."""
        found = facts_of(event_of(value))
        if found is None:
            return [f"is {an(type(value).__name__)}, no event"]
        kind, facts = found
        if self.kind not in ("anything", kind):
            return [f"is {describe(value)}"]
        return [
            f"{key}: {shorten(facts[key][0]) if key in facts else 'nothing'} is not {shorten(want)}"
            for key, want in self.wanted.items()
            if not any([fits(want, each) for each in facts.get(key, ())])
        ]


def status(
    state: TaskState, text: Any = ANY, *, data: Any = ANY, metadata: Any = ANY, artifacts: Any = ANY
) -> Matcher:
    """Match a task, or an update of its status, in a state.

    ``text`` is that of the message with the status, or, of a task, what ``task.text`` is.
    ``data`` is a data part of the message. ``metadata`` are members that the metadata has, among
    others. ``artifacts`` are those of a task, as a list of ``artifact(...)``.
    """
    return Matcher(_NAMES[state], text=text, data=data, metadata=metadata, artifacts=artifacts)


def submitted(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that has been accepted: the first event of most streams."""
    return status(TaskState.SUBMITTED, text, **wanted)


def working(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task at work: ``turn.working(text)``."""
    return status(TaskState.WORKING, text, **wanted)


def input_required(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that asks its caller: ``turn.ask(text)``."""
    return status(TaskState.INPUT_REQUIRED, text, **wanted)


def auth_required(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that needs its caller to authorise something: ``turn.require_auth(text)``."""
    return status(TaskState.AUTH_REQUIRED, text, **wanted)


def completed(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that succeeded."""
    return status(TaskState.COMPLETED, text, **wanted)


def failed(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that failed: ``turn.fail(text)``, or an exception."""
    return status(TaskState.FAILED, text, **wanted)


def rejected(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that the agent refused: ``turn.reject(text)``."""
    return status(TaskState.REJECTED, text, **wanted)


def canceled(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that was canceled."""
    return status(TaskState.CANCELED, text, **wanted)


def artifact(
    text: Any = ANY,
    *,
    name: Any = ANY,
    data: Any = ANY,
    filename: Any = ANY,
    media_type: Any = ANY,
    metadata: Any = ANY,
    append: Any = ANY,
    last: Any = ANY,
) -> Matcher:
    """Match an artifact, or an update of one.

    ``data``, ``filename`` and ``media_type`` are those of one of its parts. ``append`` and ``last``
    tell the chunks of a stream apart.
    """
    return Matcher(
        "artifact",
        text=text,
        name=name,
        data=data,
        filename=filename,
        media_type=media_type,
        metadata=metadata,
        append=append,
        last=last,
    )


def message(text: Any = ANY, *, data: Any = ANY, metadata: Any = ANY) -> Matcher:
    """Match a message, such as a direct reply."""
    return Matcher("message", text=text, data=data, metadata=metadata)


def anything() -> Matcher:
    """Match one event of any kind; in ``assert_events``, ``...`` is any number of them."""
    return Matcher("anything")


class containing:
    """Equals texts with a text in them, lists with these items, and mappings with these members."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, part: Any) -> None:
        self.part = part

    def __eq__(self, other: object) -> bool:
        if isinstance(self.part, Mapping):
            return isinstance(other, Mapping) and all(
                [key in other and fits(want, other[key]) for key, want in self.part.items()]
            )
        if isinstance(self.part, str):
            return isinstance(other, str) and self.part in other
        if isinstance(self.part, Sequence) and isinstance(other, Sequence):
            return all([any([fits(want, each) for each in other]) for want in self.part])
        return False

    def __repr__(self) -> str:
        return f"containing({self.part!r})"


def fits(want: Any, value: Any) -> bool:
    """Return whether a value is what is wanted."""
    if isinstance(want, re.Pattern):
        return isinstance(value, str) and want.search(value) is not None
    return bool(want == value)


def kind_of(value: Any) -> str | None:
    """Return the name of the matcher for an event; ``None`` for anything else."""
    found = facts_of(event_of(value))
    return None if found is None else found[0]


def describe(value: Any) -> str:
    """Return an event in the words of the matchers."""
    found = facts_of(event_of(value))
    if found is None:
        return shorten(value)
    kind, facts = found
    shown = {key: values[0] for key, values in facts.items() if values and values[0]}
    for key in ("append", "last", "metadata"):
        shown.pop(key, None)
    if kind != "artifact" and "text" in shown:
        shown.pop("artifacts", None)
    return repr(Matcher(kind, **shown))


def shorten(value: Any) -> str:
    """Return a value as it is shown: not longer than a few lines."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


Facts = dict[str, list[Any]]


def facts_of(event: Any) -> tuple[str, Facts] | None:
    """Return the kind of an event, and its facts by name: a matcher fits one of the values of each.

    ``None`` for anything else.
    """
    match event:
        case Task():
            texts = [event.status.message.text] if event.status.message else []
            facts = _parts(event.status.message.parts if event.status.message else ())
            known = facts | {"text": [*texts, *([event.text] if event.text not in texts else [])]}
            known["artifacts"] = [list(event.artifacts)]
            return _NAMES[event.state], known | {"metadata": [_Members(event.metadata)]}
        case TaskStatusUpdateEvent():
            said = event.status.message
            facts = _parts(said.parts if said else ())
            return _NAMES[event.status.state], facts | {"metadata": [_Members(event.metadata)]}
        case TaskArtifactUpdateEvent():
            facts = _artifact(event.artifact)
            return "artifact", facts | {"append": [event.append], "last": [event.last_chunk]}
        case Artifact():
            return "artifact", _artifact(event)
        case Message():
            return "message", _parts(event.parts) | {"metadata": [_Members(event.metadata)]}
    return None


class _Members(dict[str, Any]):
    """Metadata: equals a mapping whose members it has."""

    def __init__(self, members: Mapping[str, Any] | None) -> None:
        super().__init__(members or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and containing(other) == dict(self)


def _artifact(made: Artifact) -> Facts:
    return _parts(made.parts) | {"name": [made.name], "metadata": [_Members(made.metadata)]}


def _parts(parts: Sequence[Part]) -> Facts:
    facts: Facts = {"text": [text_of(parts)]} if any([p.text is not None for p in parts]) else {}
    for key, values in _of_parts(parts):
        if values:
            facts[key] = values
    return facts


def _of_parts(parts: Sequence[Part]) -> Iterator[tuple[str, list[Any]]]:
    yield "data", [part.data for part in parts if part.has_data]
    yield "filename", [part.filename for part in parts if part.filename]
    yield "media_type", [part.media_type for part in parts if part.media_type]


_NAMES = {state: state.value.removeprefix("TASK_STATE_").lower() for state in TaskState}
