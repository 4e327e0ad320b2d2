"""Ways to break the engine on purpose, which show whether the simulation detects them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from parley.engine.capacity import Claimer
from parley.engine.maintenance import Alarm
from parley.engine.replies import Waiters
from parley.engine.turn.attempt import Attempt
from parley.engine.turn.task_runner import TaskRunner
from parley.engine.turn.task_writer import TaskWriter
from parley.store import follow
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import RecordKind, logged
from parley.store.head import Head, payload_of, with_claim
from parley.store.memory import store as memory
from parley.store.protocols.task_log import Append

if TYPE_CHECKING:
    from tests.simulation.database import SimulatedStore


class Mutation:
    """Nothing is broken."""

    def append(self, append: Append, before: Head | None) -> Append:
        """Return the append that the database really writes."""
        return append

    def sent(self, store: SimulatedStore, append: Append) -> None:
        """Record an append on its way to the database."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break something within the context."""
        yield


NONE = Mutation()


@contextmanager
def _instead(where: Any, name: str, what: Any) -> Iterator[None]:
    before = where.__dict__[name]
    setattr(where, name, what)
    try:
        yield
    finally:
        setattr(where, name, before)


class NoFencing(Mutation):
    """The database accepts appends from an executor that has lost its task."""

    def append(self, append: Append, before: Head | None) -> Append:
        if before is None or append.expected_seq in (None, 0):
            return append
        return replace(append, epoch=before.epoch)


class HintBeforeCommit(Mutation):
    """Readers get events before the commit to the log."""

    def sent(self, store: SimulatedStore, append: Append) -> None:
        seq, records = append.expected_seq, []
        if seq is None or store.committed is None:
            return
        for event, payload in zip(append.events, payload_of(append).events, strict=True):
            kind = RecordKind(_KINDS[type(event).__name__])
            if kind.is_public:
                seq += 1
                records.append(
                    logged(append.task_id, seq, 0, append.turn, kind, store.now(), payload)
                )
        if records:
            store.committed(records)


_KINDS = {
    "Task": "task",
    "TaskStatusUpdateEvent": "status",
    "TaskArtifactUpdateEvent": "artifact",
    "TurnStarted": "turn",
    "MessageReceived": "received",
    "StepResult": "remembered",
    "CancelRequested": "cancel",
}


class ClaimsWhatIsHeld(Mutation):
    """A claim takes a task from its living lease owner."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        claimed = memory.with_claim

        def take(head: Head | None, task_id: str, replica: str) -> Head:
            return claimed(head and replace(head, lease_owner=""), task_id, replica)

        with _instead(memory, "with_claim", take):
            yield


class LostWakeUp(Mutation):
    """A runner gets no wake-up from the log while its function runs."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        def wake(runner: TaskRunner) -> None:
            runner.woken = True

        with _instead(TaskRunner, "wake", wake):
            yield


class NobodyLooks(Mutation):
    """Events in the store without a hint are not passed on."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        with _instead(LocalHints, "notify_position", lambda hints, place: None):
            yield


class ForgetsToClaim(Mutation):
    """Unclaimed tasks are forgotten if there is no capacity for them at once."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        wake = Claimer.wake

        def once(claimer: Claimer) -> None:
            if not claimer.is_running:
                wake(claimer)
            claimer.is_wanted = False

        with _instead(Claimer, "wake", once):
            yield


class StepsAgain(Mutation):
    """A further attempt does not know the results of completed steps."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        replay = Attempt.replay

        def forget(attempt: Attempt, records: Any) -> None:
            replay(attempt, records)
            attempt.journal.results.clear()

        with _instead(Attempt, "replay", forget):
            yield


class SeesTwice(Mutation):
    """A reader does not distinguish old events from new ones."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        with _instead(follow, "_after", lambda events, position: events):
            yield


class DoublesArtifacts(Mutation):
    """A further attempt appends to the artifacts of the previous one."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        def another(attempt: Attempt) -> str:
            attempt.artifact_count += 1
            return f"{attempt.turn}.{attempt.number}.{attempt.artifact_count}"

        with _instead(Attempt, "next_artifact_id", another):
            yield


class RepliesOfAnothersTurn(Mutation):
    """The reply of a turn goes to all waiting callers."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        resolve = Waiters.resolve

        def resolve_all(waiters: Waiters, reply: Any) -> None:
            waiters.current += waiters.pending.values()
            resolve(waiters, reply)

        with _instead(Waiters, "resolve", resolve_all):
            yield


class AnswersBeforeTheStore(Mutation):
    """Responses do not wait until the write is durable."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        async def flush(writer: TaskWriter) -> None:
            if writer.error is not None:
                raise writer.error

        with _instead(TaskWriter, "flush", flush):
            yield


class WaitsForWhatIsComplete(Mutation):
    """A task that starts to wait for an event ignores its earlier completion."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        with _instead(memory, "with_event", lambda head: head):
            yield


class ForgetsToWake(Mutation):
    """The search for due tasks runs only once, when the server starts."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        async def wait(alarm: Alarm, *, is_known: bool) -> None:
            await asyncio.Event().wait()

        with _instead(Alarm, "_wait", wait):
            yield


class SleepsAgain(Mutation):
    """A turn does not find its earlier sleeps and events in the log."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        replay = Attempt.replay

        def forget(attempt: Attempt, records: Any) -> None:
            replay(attempt, records)
            results = attempt.journal.results
            attempt.journal.results = {k: v for k, v in results.items() if k.startswith("step:")}

        with _instead(Attempt, "replay", forget):
            yield


class ClaimsWhatSleeps(Mutation):
    """Sleeping tasks count as unclaimed."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        def is_unclaimed(head: Head) -> bool:
            return not head.lease_owner and head.is_unfinished

        with (
            _instead(Head, "is_unclaimed", property(is_unclaimed)),
            _instead(memory, "with_claim", self._claim),
        ):
            yield

    @staticmethod
    def _claim(head: Head | None, task_id: str, replica: str) -> Head:
        return with_claim(replace(head, wakes_at=None) if head else head, task_id, replica)


ALL = tuple(Mutation.__subclasses__())


def named(name: str) -> Mutation:
    """Return a way to break the engine by its name. Raises ``ValueError``."""
    for kind in ALL:
        if kind.__name__ == name:
            return kind()
    raise ValueError(f"there is no {name!r}; there are {', '.join(k.__name__ for k in ALL)}")
