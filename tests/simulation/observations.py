"""The callers' observations, checked against the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parley.model.parts import Message
from parley.model.service import StreamItem
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from tests.simulation.checks import INTERRUPTED, LogChecker
from tests.simulation.world import World


class View:
    """One caller's view of a task in streams: every event, once, in order (L6)."""

    def __init__(self, world: World, checker: LogChecker, who: str, task_id: str) -> None:
        self._world = world
        self._checker = checker
        self._who = who
        self.task_id = task_id
        self.position = 0
        self.reply: Message | None = None
        self.follows = self.is_subscription = False
        self.last_state: TaskState | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether the task waited for its caller at the last observation."""
        return self.last_state in INTERRUPTED

    def take(self, item: StreamItem) -> None:
        """Check the next item."""
        event, seq = item.event, item.seq
        if isinstance(event, Message):
            self.reply = event
            return
        if seq is None:
            self._world.violated("L6", self._who, f"an event without a number: {event}")
            return
        self.task_id = self.task_id or (event.id if isinstance(event, Task) else event.task_id)
        name = self._world.name("t", self.task_id)
        self._world.trace("sees", name, seq)
        kept = self._checker.tasks.get(self.task_id)
        if kept is None or kept.seq < seq:
            self._world.violated("L2", name, f"{self._who} sees {seq}, which is not in the log")
            return
        if isinstance(event, Task | TaskStatusUpdateEvent):
            self.last_state = event.status.state
        if not self.position and not self.follows and isinstance(event, Task) and seq > 1:
            if (seq, event) not in kept.snapshots:
                self._world.violated("L4", name, f"at {seq} {self._who} is shown another task")
        else:
            record = kept.event(seq)
            if seq != self.position + 1 and (self.position or self.follows):
                self._world.violated("L6", name, f"{self._who} sees {seq} after {self.position}")
            same = (
                record is not None and record.event == event and item.json in (None, record.payload)
            )
            if not same and ((seq, event) not in kept.snapshots or self.position):
                self._world.violated("L4", name, f"{self._who} sees another {seq}")
        self.position = seq


class Observations:
    """The observations of all callers, checked immediately if possible, otherwise in ``finish``."""

    def __init__(self, world: World, checker: LogChecker) -> None:
        self._world = world
        self._checker = checker
        self._sent: dict[str, bool] = {}
        self._direct: dict[str, Message] = {}
        self._replies: list[tuple[str, Task, bool]] = []
        self._ended_streams: list[tuple[str, str, int]] = []
        self._refused: list[tuple[str, str]] = []

    def view(self, who: str, task_id: str) -> View:
        """Return a new view of an existing or future task."""
        return View(self._world, self._checker, who, task_id)

    def sent(self, message_id: str, is_repeatable: bool) -> None:
        """Record that a message was sent."""
        self._sent[message_id] = is_repeatable

    def direct_reply(self, message_id: str, reply: Message) -> None:
        """Record a reply without a task."""
        self._direct[message_id] = reply

    def replied(self, message_id: str, task: Task, *, final: bool) -> None:
        """Record a task in a reply; ``final`` when it must be as the message's turn left it."""
        self._shown(task, 0)
        self._replies.append((message_id, task, final))

    def got(self, task: Task, after: int) -> None:
        """Check a task read by a caller who has seen event ``after`` before."""
        self._shown(task, after)

    def _shown(self, task: Task, after: int) -> None:
        name = self._world.name("t", task.id)
        kept = self._checker.tasks.get(task.id)
        if kept is None:
            self._world.violated("L2", name, "is shown, and not in the log")
            return
        if not any(seq >= after and snapshot == task for seq, snapshot in kept.snapshots):
            self._world.violated("L4", name, f"is shown as it never was since {after}: {task}")

    def stream_ended(self, message_id: str, view: View) -> None:
        """Record that the server ended the stream of a message."""
        self._ended_streams.append((message_id, view.task_id, view.position))

    def subscription_ended(self, view: View) -> None:
        """Check a subscription that the server ended: the task must have ended."""
        kept = self._checker.tasks[view.task_id]
        if not _is_over(kept.folding.state) or view.position != kept.seq:
            name = self._world.name("t", view.task_id)
            self._world.violated("L6", name, f"a subscription ends at {view.position}")

    def has_ended(self, task_id: str, canceled: bool | None = None) -> None:
        """Check a task that a caller was informed has ended."""
        state = self._checker.tasks[task_id].folding.state
        ok = _is_over(state) and canceled in (None, state is TaskState.CANCELED)
        if not ok:
            name = self._world.name("t", task_id)
            self._world.violated("E4", name, f"should have ended, canceled {canceled}: {state}")

    def refused_as_ended(self, task_id: str, message_id: str) -> None:
        """Check a message that was rejected because its task had ended."""
        self.has_ended(task_id)
        self._refused.append((task_id, message_id))

    def listed(self, agent: str, owner: str, tasks: Sequence[Task], known: Sequence[str]) -> None:
        """Check a list of all tasks of a caller, made when no work was left."""
        logs: dict[str, Any] = self._checker.logs
        meant = {
            id: log.stored(None, True).task()
            for id, log in logs.items()
            if (log.head.scope.agent, log.head.scope.owner) == (agent, owner)
        }
        if {task.id: task for task in tasks} != meant or len(tasks) != len(meant):
            self._world.violated("L4", owner, "a list shows other tasks than there are")
        if missing := [id for id in known if id not in meant]:
            self._world.violated("L2", owner, f"tasks are gone: {missing}")

    def finish(self) -> None:
        """Run the checks that were impossible earlier."""
        begun: dict[str, list[str]] = {}
        for task_id, kept in self._checker.tasks.items():
            first = kept.snapshots[0][1].history[0].message_id
            begun.setdefault(first, []).append(task_id)
            ids = list(kept.received.values())
            for message_id in ids:
                if ids.count(message_id) > 1:
                    self._violated("E2", task_id, "a message came in twice", message_id)
        for message_id, tasks in begun.items():
            if len(tasks) > 1:
                self._violated("E2", tasks[0], "a message began several tasks", message_id)
            if message_id in self._direct:
                self._violated("E2", tasks[0], "a message was answered, and began a task too")
        for message_id, reply, final in self._replies:
            turn = self._checker.turn_of(reply.id, message_id)
            if not turn and final:
                self._violated("E2", reply.id, "a message that no turn took has a reply")
            if final and reply not in self._checker.left_by(reply.id, turn):
                self._violated("E2", reply.id, "the reply is not how the turn", turn, "left it")
        for message_id, task_id, position in self._ended_streams:
            self._check_stream(message_id, task_id, position)
        for task_id, message_id in self._refused:
            if self._sent[message_id]:
                continue  # an earlier attempt to send it may have succeeded
            if self._checker.turn_of(task_id, message_id):
                self._violated("E2", task_id, "a message was refused, and taken by a turn")

    def _check_stream(self, message_id: str, task_id: str, position: int) -> None:
        kept = self._checker.tasks[task_id]
        turn = self._checker.turn_of(task_id, message_id)
        record = kept.event(position)
        event = record.event if record else None
        if isinstance(event, Task | TaskStatusUpdateEvent):
            state = event.status.state
            if state.is_terminal:
                return
            if record and state in INTERRUPTED and 0 < turn <= record.turn:
                return
        self._violated("L6", task_id, f"a stream ends at {position}, before turn {turn} does")

    def _violated(self, rule: str, task_id: str, *what: object) -> None:
        self._world.violated(rule, self._world.name("t", task_id), *what)


def _is_over(state: TaskState | None) -> bool:
    return state is not None and state.is_terminal
