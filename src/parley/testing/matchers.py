"""Matchers of events, and assertions on sequences of events that print the difference.

A matcher equals each event that it describes, so ``assert events == [submitted(), working("..."),
completed()]`` works, and so does ``assert task == completed(text="97.20")``. The text of a matcher
is a string, a compiled pattern that is searched for, or any object that equals the expected text,
such as ``containing("rate")``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part, text_of
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.testing.webhooks import Delivery, event_of

ANY: Any = msgspec.UNSET
"""Stands for any value."""

SHOWN = 200
"""The most characters of a text that a difference shows."""


class Matcher:
    """Equals the events that it describes. ``differences`` says why another event does not fit."""

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
        """Return the differences between a value and the description; an empty list if the value
        fits.
        """
        found = facts_of(event_of(value))
        if found is None:
            return [f"is {an(type(value).__name__)}, no event"]
        kind, facts = found
        if self.kind not in ("anything", kind):
            return [f"is {describe(value)}"]
        return [
            f"{key}: {shorten(facts[key][0]) if key in facts else 'nothing'} is not {shorten(want)}"
            for key, want in self.wanted.items()
            if not any(fits(want, each) for each in facts.get(key, ()))
        ]


def status(
    state: TaskState, text: Any = ANY, *, data: Any = ANY, metadata: Any = ANY, artifacts: Any = ANY
) -> Matcher:
    """Match a task, or an update of its status, in a state.

    ``text`` is the text of the status message; for a task it may also be ``task.text``. ``data`` is
    a data part of the message. ``metadata`` lists required members of the metadata; further members
    are allowed. ``artifacts`` is the list of a task's artifacts, as ``artifact(...)`` matchers.
    """
    return Matcher(_NAMES[state], text=text, data=data, metadata=metadata, artifacts=artifacts)


def submitted(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match an accepted task: the first event of most streams."""
    return status(TaskState.SUBMITTED, text, **wanted)


def working(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task at work: ``turn.working(text)``."""
    return status(TaskState.WORKING, text, **wanted)


def input_required(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that asks its caller a question: ``turn.ask(text)``."""
    return status(TaskState.INPUT_REQUIRED, text, **wanted)


def auth_required(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that needs an authorisation by its caller: ``turn.require_auth(text)``."""
    return status(TaskState.AUTH_REQUIRED, text, **wanted)


def completed(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that succeeded."""
    return status(TaskState.COMPLETED, text, **wanted)


def failed(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that failed: ``turn.fail(text)``, or an exception."""
    return status(TaskState.FAILED, text, **wanted)


def rejected(text: Any = ANY, **wanted: Any) -> Matcher:
    """Match a task that the agent rejected: ``turn.reject(text)``."""
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
    """Match an artifact, or an update of an artifact.

    ``data``, ``filename`` and ``media_type`` describe one part of the artifact. ``append`` and
    ``last`` identify a chunk of a stream by its position.
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
    """Match one event of any kind; in ``assert_events``, ``...`` matches any number of events."""
    return Matcher("anything")


class containing:
    """Equals any text with this substring, list with these items, or mapping with these members."""

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
    """Return whether a value equals the expected value."""
    if isinstance(want, re.Pattern):
        return isinstance(value, str) and want.search(value) is not None
    return bool(want == value)


def kind_of(value: Any) -> str | None:
    """Return the name of the matcher for an event; ``None`` for anything else."""
    found = facts_of(event_of(value))
    return None if found is None else found[0]


def describe(value: Any) -> str:
    """Return an event written as the matcher that describes it."""
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
    """Return a value as a difference shows it: at most a few lines."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


Facts = dict[str, list[Any]]


def facts_of(event: Any) -> tuple[str, Facts] | None:
    """Return the kind of an event and its facts: for each fact, the values that a matcher may name.

    ``None`` for a value that is no event.
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
    """Metadata that equals every mapping with the same members, among others."""

    def __init__(self, members: Mapping[str, Any] | None) -> None:
        super().__init__(members or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and containing(other) == dict(self)


def _artifact(made: Artifact) -> Facts:
    return _parts(made.parts) | {"name": [made.name], "metadata": [_Members(made.metadata)]}


def _parts(parts: Sequence[Part]) -> Facts:
    facts: Facts = {"text": [text_of(parts)]} if any(p.text is not None for p in parts) else {}
    for key, values in _of_parts(parts):
        if values:
            facts[key] = values
    return facts


def _of_parts(parts: Sequence[Part]) -> Iterator[tuple[str, list[Any]]]:
    yield "data", [part.data for part in parts if part.has_data]
    yield "filename", [part.filename for part in parts if part.filename]
    yield "media_type", [part.media_type for part in parts if part.media_type]


_NAMES = {state: state.value.removeprefix("TASK_STATE_").lower() for state in TaskState}


Expected = Matcher | EllipsisType | Any
"""An expected event: a matcher, an event itself, or ``...`` for any number of events."""


def assert_events(
    events: Iterable[Any], expected: Sequence[Expected], *, join_chunks: bool = True
) -> None:
    """Raise ``AssertionError`` with the difference, unless the events equal the expected events.

    The events come from a stream, from a task's log, or from webhooks. In ``expected``, ``...``
    stands for any number of events. Successive chunks of an artifact count as one event, because
    their number depends on timing; ``join_chunks=False`` compares them one by one.
    """
    __tracebackhide__ = True
    if isinstance(expected, Matcher):
        raise TypeError(f"expected is a list: [{expected!r}]")
    came = list(events)
    if join_chunks:
        came = joined(came)
    if not _fit(came, expected):
        raise AssertionError("\n".join(["these are not the events:", *difference(came, expected)]))


def joined(events: Sequence[Any]) -> list[Any]:
    """Return events with the successive chunks of an artifact joined into one event."""
    found: list[Any] = []
    for value in events:
        event = event_of(value)
        before = event_of(found[-1]) if found else None
        if (
            isinstance(event, TaskArtifactUpdateEvent)
            and isinstance(before, TaskArtifactUpdateEvent)
            and event.append
            and before.artifact.artifact_id == event.artifact.artifact_id
            and before.task_id == event.task_id
        ):
            parts = (*before.artifact.parts, *event.artifact.parts)
            whole = replace(
                before, artifact=replace(before.artifact, parts=parts), last_chunk=event.last_chunk
            )
            last = found.pop()
            found.append(replace(last, event=whole) if isinstance(last, Delivery) else whole)
        else:
            found.append(value)
    return found


def difference(came: Sequence[Any], expected: Sequence[Expected]) -> list[str]:
    """Return the lines that show how events differ: ``-`` was expected, ``+`` came instead."""
    lines: list[str] = []
    missing: list[Any] = []
    extra: list[Any] = []

    def flush() -> None:
        for wanted in missing:
            kind = wanted.kind if isinstance(wanted, Matcher) else ""
            index = next((i for i, value in enumerate(extra) if kind_of(value) == kind), None)
            came_before = extra[:index] if index is not None else []
            lines.extend(f"  + {describe(value)}" for value in came_before)
            lines.append(f"  - {wanted!r}")
            if index is not None:
                lines.append(f"  + {describe(extra[index])}")
                lines.extend(f"      {why}" for why in wanted.differences(extra[index]))
                del extra[: index + 1]
        lines.extend(f"  + {describe(value)}" for value in extra)
        missing.clear()
        extra.clear()

    for value, wanted in _aligned(came, expected):
        if wanted is _NOTHING:
            extra.append(value)
        elif value is _NOTHING:
            missing.append(wanted)
        else:
            flush()
            line = "    ..." if wanted is ... else f"    {describe(value)}"
            if wanted is not ... or lines[-1:] != [line]:
                lines.append(line)
    flush()
    return lines


_NOTHING: Any = object()


def _fits(wanted: Expected, value: Any) -> bool:
    if isinstance(wanted, Matcher):
        return not wanted.differences(value)
    return fits(wanted, value) or fits(wanted, event_of(value))


def _fit(came: Sequence[Any], expected: Sequence[Expected]) -> bool:
    return _scores(came, expected)[0][0] == _best(came, expected)


def _best(came: Sequence[Any], expected: Sequence[Expected]) -> int:
    return 2 * sum([wanted is not ... for wanted in expected])


def _scores(came: Sequence[Any], expected: Sequence[Expected]) -> list[list[int]]:
    """Return the best score of each pair of remainders: 2 for a match, -1 for a missing or extra
    event.
    """
    table = [[0] * (len(expected) + 1) for _ in range(len(came) + 1)]
    for i in range(len(came), -1, -1):
        for j in range(len(expected), -1, -1):
            if i == len(came) and j == len(expected):
                continue
            options = []
            if j < len(expected) and expected[j] is ...:
                options.append(table[i][j + 1])
                if i < len(came):
                    options.append(table[i + 1][j])
            else:
                if i < len(came) and j < len(expected) and _fits(expected[j], came[i]):
                    options.append(table[i + 1][j + 1] + 2)
                if i < len(came):
                    options.append(table[i + 1][j] - 1)
                if j < len(expected):
                    options.append(table[i][j + 1] - 1)
            table[i][j] = max(options)
    return table


def _aligned(came: Sequence[Any], expected: Sequence[Expected]) -> list[tuple[Any, Any]]:
    """Return pairs of an event and its expected event, either of which may be missing."""
    table = _scores(came, expected)
    i = j = 0
    found: list[tuple[Any, Any]] = []
    while i < len(came) or j < len(expected):
        score = table[i][j]
        if j < len(expected) and expected[j] is ...:
            if i < len(came) and table[i + 1][j] == score and table[i][j + 1] != score:
                found.append((came[i], ...))
                i += 1
            else:
                j += 1
        elif (
            i < len(came)
            and j < len(expected)
            and table[i + 1][j + 1] + 2 == score
            and _fits(expected[j], came[i])
        ):
            found.append((came[i], expected[j]))
            i, j = i + 1, j + 1
        elif j < len(expected) and table[i][j + 1] - 1 == score:
            found.append((_NOTHING, expected[j]))
            j += 1
        else:
            found.append((came[i], _NOTHING))
            i += 1
    return found
