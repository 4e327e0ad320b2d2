"""Checks of the log at every commit, and of the final state (L1-L7, E1-E6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from parley.model.parts import text_of
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.store.events import LoggedEvent, MessageReceived, RecordKind, StepResult, TurnStarted
from parley.store.fold import Fold
from parley.store.head import Head
from parley.store.protocols.task_log import Append
from tests.simulation import compositions
from tests.simulation.programs import expected_artifacts

if TYPE_CHECKING:
    from parley.agent.turn import Turn
    from tests.simulation.loop import Process
    from tests.simulation.world import World

INTERRUPTED = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)


EPOCH = 1_700_000_000_000

CLOCK_ERROR = 110
"""Maximum difference (ms) between the clocks of two replicas."""

_ONCE = ("step:", "sleep:", "slept:", "wait:", "event:")
"""Results that a log contains at most once."""

HEARD_WITHIN = 6.0
"""Maximum delay, in seconds, until a function that waits for messages gets one."""


class Kept(msgspec.Struct):
    """One task's log, reconstructed by the checker."""

    task_id: str
    records: list[LoggedEvent] = []
    folding: Fold = msgspec.field(default_factory=Fold)
    epoch: int = 0
    writer: str = ""
    turn: int = 0
    is_open: bool = False
    received: dict[str, str] = {}
    received_at: dict[str, float] = {}
    taken: dict[str, int] = {}
    remembered: set[str] = set()
    sleeps: dict[str, int] = {}
    snapshots: list[tuple[int, Task]] = []

    @property
    def seq(self) -> int:
        """The number of the last public event."""
        return self.records[-1].seq if self.records else 0

    def event(self, seq: int) -> LoggedEvent | None:
        """Return a public event."""
        return next((r for r in self.records if r.seq == seq and not r.sub), None)


class LogChecker:
    """Checks every commit in the database. Raises ``Violation``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.logs: dict[str, Any] = {}
        self.tasks: dict[str, Kept] = {}
        self.alive: Any = lambda replica: False

    # -- every write ---------------------------------------------------------------------------

    def committed(
        self, append: Append, before: Head | None, records: Sequence[LoggedEvent], replica: str
    ) -> None:
        """Check one append, written by ``replica``."""
        world, task_id = self._world, append.task_id
        kept = self.tasks.get(task_id)
        if kept is None:
            kept = self.tasks[task_id] = Kept(task_id)
        name = world.name("t", task_id)
        world.trace("commit", name, *[_short(r) for r in records], f"e{append.epoch}", replica)
        if append.expected_seq is not None:
            self._check_writer(name, kept, append, before, replica)
        for record in records:
            self._check_record(name, kept, record)
        head = self.logs[task_id].head
        if (head.seq, head.state) != (kept.seq, kept.folding.state):
            world.violated("L4", name, "head and log differ", head)
        waiting = len(kept.received) - len(kept.taken)
        if head.ended_at is None and head.waiting != waiting:
            world.violated("E2", name, f"{waiting} messages wait, the head has {head.waiting}")
        stored = self.logs[task_id].stored(None, True)
        if append.artifacts is not None and stored.task() != kept.folding.task:
            world.violated("L4", name, "the stored form is not the fold of the log")
        if append.artifacts is not None and stored.tail:
            world.violated("L4", name, "what was to be stored is only in the log")
        if records:
            kept.snapshots.append((kept.seq, kept.folding.task))
        if head.turn_open and not kept.is_open:
            kept.is_open = True
        elif not head.turn_open:
            kept.is_open = False

    def _check_writer(
        self, name: str, kept: Kept, append: Append, before: Head | None, replica: str
    ) -> None:
        world = self._world
        if append.epoch < kept.epoch or (before and append.epoch != before.epoch):
            world.violated("E1", name, f"written in epoch {append.epoch}, it is in {kept.epoch}")
        if append.epoch == kept.epoch and kept.writer not in ("", replica):
            world.violated("E1", name, f"{kept.writer} and {replica} write in one epoch")
        kept.epoch, kept.writer = append.epoch, replica

    def _check_record(self, name: str, kept: Kept, record: LoggedEvent) -> None:
        world, event = self._world, record.event
        last = kept.records[-1] if kept.records else None
        place = (last.seq, last.sub) if last else (0, 0)
        right = (place[0], place[1] + 1) if record.sub else (place[0] + 1, 0)
        if (record.seq, record.sub) != right:
            world.violated("L1", name, f"after {place} comes {(record.seq, record.sub)}")
        state = kept.folding.state
        if state is not None and state.is_terminal:
            world.violated("L3", name, f"{_short(record)} follows {state.value}")
        try:
            kept.folding.apply(event)
        except ValueError as error:
            world.violated("L3", name, error)
        kept.records.append(record)
        if isinstance(event, MessageReceived):
            kept.received[event.entry] = event.message.message_id
            kept.received_at[event.entry] = world.loop.time()
        elif isinstance(event, StepResult):
            if event.key.startswith(_ONCE) and event.key in kept.remembered:
                world.violated("E3", name, f"{event.key} is remembered twice")
            if event.key.startswith("sleep:"):
                kept.sleeps[event.key[6:]] = msgspec.json.decode(event.value)
            elif event.key.startswith("slept:"):
                due = kept.sleeps[event.key[6:]]
                if world.loop.time() * 1000 + EPOCH + CLOCK_ERROR < due:
                    world.violated("E3", name, f"it slept until {due} only")
            kept.remembered.add(event.key)
        elif isinstance(event, TurnStarted):
            self._check_turn(name, kept, event)

    def _check_turn(self, name: str, kept: Kept, turn: TurnStarted) -> None:
        for entry in turn.entries:
            if entry in kept.taken:
                self._world.violated("E2", name, f"a message is taken twice: {entry}")
            if entry not in kept.received:
                self._world.violated("E2", name, f"a message is taken that never came: {entry}")
            kept.taken[entry] = turn.turn
        begins = bool(turn.entries) and not turn.live
        if begins and kept.is_open:
            self._world.violated("E2", name, f"turn {turn.turn} begins before {kept.turn} ended")
        if turn.turn < kept.turn or (begins and turn.turn != max(kept.turn, 1) + 1):
            self._world.violated("E2", name, f"after turn {kept.turn} comes turn {turn.turn}")
        kept.turn = max(kept.turn, turn.turn)
        plan = self._world.plan
        tried = [
            record.event
            for record in kept.records[:-1]
            if isinstance(record.event, TurnStarted) and record.event.turn == turn.turn
        ]
        let_go = sum(each.released for each in tried)
        if turn.attempt - let_go > 1 and plan.on_crash == "fail" and not turn.released:
            self._world.violated("E3", name, "a turn is attempted again that should fail")

    def claimed(self, task_id: str, before: Head | None, replica: str) -> None:
        """Check a claim: no replica may take a task from a living replica."""
        world = self._world
        head = self.logs[task_id].head
        name = world.name("t", task_id)
        world.trace("claim", name, f"e{head.epoch}", replica, before.lease_owner if before else "")
        if before is None or head.epoch <= before.epoch or before.ended_at is not None:
            world.violated("E1", name, "a claim that raises no epoch")
        if before is not None and before.lease_owner not in ("", replica):
            world.violated("E1", name, f"{replica} takes it from {before.lease_owner}")
        if before is not None and before.wakes_at is not None:
            world.violated("E1", name, f"{replica} takes it while it sleeps")

    def woken(self, task_id: str, before: Head, now: int) -> None:
        """Check a sleeping task that a replica has woken: it was due and asleep."""
        name = self._world.name("t", task_id)
        self._world.trace("wakes up", name)
        if before.wakes_at is None:
            self._world.violated("E1", name, "it is woken, and was awake")
        elif before.wakes_at > now + CLOCK_ERROR:
            self._world.violated(
                "E3", name, f"it is woken at {now}, and sleeps to {before.wakes_at}"
            )

    # -- agent functions -------------------------------------------------------------------------

    def _is_current(self, turn: Turn) -> bool:
        runner = turn._attempt.runner
        log = self.logs.get(runner.task_id)
        return log is not None and runner.epoch == log.head.epoch and not turn._attempt.finished

    def runs(self, turn: Turn, process: Process) -> None:
        """Check a function that starts."""
        runner = turn._attempt.runner
        name = self._world.name("t", runner.task_id) if runner.has_id else "-"
        self._world.trace("runs", name, f"turn {turn.number}.{turn.attempt}", turn.text)
        if turn.attempt > self._world.plan.max_attempts + 20:
            self._world.violated("E3", name, f"attempt {turn.attempt}")

    def steps(self, turn: Turn, key: str, process: Process) -> None:
        """Check a step before its execution: it must not be complete already."""
        kept = self.tasks.get(turn.task_id)
        if kept is not None and self._is_current(turn) and key in kept.remembered:
            name = self._world.name("t", turn.task_id)
            self._world.violated("E3", name, f"{key} is done again, though it is remembered")

    def hears_nothing(self, turn: Turn) -> None:
        """Check a function that timed out while it waited for additional messages."""
        kept, world = self.tasks.get(turn.task_id), self._world
        if kept is None or not self._is_current(turn):
            return
        if world.plan.late_append or world.plan.forgets:
            return
        for entry, at in kept.received_at.items():
            waits = world.loop.time() - max(at, world.calm_since)
            if entry not in kept.taken and waits > HEARD_WITHIN:
                name = world.name("t", turn.task_id)
                world.violated("E2", name, f"a message waits for {waits:.1f} s, and nobody tells")

    # -- the end -------------------------------------------------------------------------------

    def at_rest(self) -> list[str]:
        """Return the work that is unfinished although all faults have ended."""
        restless = []
        for task_id, log in self.logs.items():
            head = log.head
            ok = head.ended_at is not None or (
                head.state in INTERRUPTED
                and self._world.plan.task_timeout is None  # otherwise it still fails by itself
                and not (head.turn_open or head.waiting or head.cancel_requested)
            )
            if not ok or head.lease_owner:
                restless.append(
                    f"{self._world.name('t', task_id)} is {head.state.value}, turn "
                    f"{head.turn} {'open' if head.turn_open else 'closed'}, {head.waiting} wait, "
                    f"cancel {head.cancel_requested}, held by {head.lease_owner or 'nobody'}"
                )
        return restless

    def finish(self) -> None:
        """Check every complete log."""
        for task_id, log in self.logs.items():
            name = self._world.name("t", task_id)
            kept = self.tasks[task_id]
            if log.stored(None, True).task() != kept.folding.task:
                self._world.violated("L4", name, "the stored task is not the fold of its log")
            states = [r.event.status.state for r in kept.records if _is_status(r)]
            if sum(state.is_terminal for state in states) > 1:
                self._world.violated("L3", name, "two terminal states")
            runs = log.head.scope.agent in ("programs", compositions.WORKER)
            if runs and kept.folding.state is TaskState.COMPLETED:
                self._check_artifacts(name, kept)
            if kept.folding.state is TaskState.FAILED and self._world.plan.is_gentle:
                said = kept.folding.task.status.message
                if said is not None and "attempts" in said.text:
                    self._world.violated("E3", name, "no replica died, and it failed:", said.text)

        compositions.check(self._world, self.logs, self.tasks)

    def _check_artifacts(self, name: str, kept: Kept) -> None:
        task = kept.folding.task
        made = [text_of(artifact.parts) for artifact in task.artifacts]
        meant = expected_artifacts(task.history[0].text)
        same = len(made) == len(meant) and all(
            text is None or text == is_ for text, is_ in zip(meant, made, strict=True)
        )
        if not same:
            self._world.violated("E3", name, f"it made {made}, and should have made {meant}")

    def left_by(self, task_id: str, turn: int) -> list[Task]:
        """Return the state after a turn, and the final state if no other turn followed."""
        folding, left, left_at = Fold(), [], 0
        for record in self.tasks[task_id].records:
            folding.apply(record.event)
            if record.turn >= turn and (not left or record.turn == left_at):
                event = record.event
                state = event.status.state if isinstance(event, TaskStatusUpdateEvent) else None
                if state is not None and (state.is_terminal or state in INTERRUPTED):
                    left.append(folding.task)
                    left_at = record.turn
        return left

    def turn_of(self, task_id: str, message_id: str) -> int:
        """Return the turn that accepted a message, 0 if there is none."""
        kept = self.tasks[task_id]
        first = kept.records[0].event
        assert isinstance(first, Task)
        if first.history[0].message_id == message_id:
            return 1
        turns = [
            kept.taken.get(entry, 0) for entry, id in kept.received.items() if id == message_id
        ]
        return max(turns, default=0)


def _is_status(record: LoggedEvent) -> bool:
    return isinstance(record.event, Task | TaskStatusUpdateEvent)


def _short(record: LoggedEvent) -> str:
    event = record.event
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return f"{record.seq}:{event.status.state.value.removeprefix('TASK_STATE_')}"
    if isinstance(event, TurnStarted):
        kinds = {"live": event.live, "released": event.released, "asleep": event.asleep}
        kind = next((kind for kind, it_is in kinds.items() if it_is), "turn")
        return f"{record.seq}.{record.sub}:{kind}{event.turn}.{event.attempt}"
    if record.kind is RecordKind.ARTIFACT:
        return f"{record.seq}:artifact"
    return f"{record.seq}.{record.sub}:{record.kind.value}"
