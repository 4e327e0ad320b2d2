"""Assertions on sequences of events, which print the difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import EllipsisType
from typing import Any

from msgspec.structs import replace

from parley.model.tasks import TaskArtifactUpdateEvent
from parley.testing.matchers import Matcher, describe, fits, kind_of
from parley.testing.webhooks import Delivery, event_of

Expected = Matcher | EllipsisType | Any
"""What is expected of an event: a matcher, an event itself, or ``...`` for any number of events."""


def assert_events(
    events: Iterable[Any], expected: Sequence[Expected], *, join_chunks: bool = True
) -> None:
    """Raise ``AssertionError`` with the difference, unless events are those that are expected.

    The events are those of a stream, of a task's log, or of webhooks. In ``expected``, ``...``
    stands for any number of events. Chunks of an artifact that follow each other are one event, as
    their number is a matter of time; ``join_chunks=False`` leaves them apart.
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
    """Return events with the chunks of an artifact that follow each other as one."""
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
    """Return the best score of the rests: 2 for a match, -1 for an event or a wish left over."""
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
    """Return events beside what was expected, either of which may be missing."""
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
