"""What buses carry: frames of hints, written and read here and nowhere else.

    <version><sender> [[told, ...], [agent, ...]]        all of it text
    told = [task id, seq, sub, [record, ...]]            the log has reached (seq, sub)
    record = [seq, sub, turn, kind, moment, event]

A frame of another version, as replicas of an older or newer release send it, is not looked into:
what it says is found in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

import msgspec

from parley.model.tasks import Task
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import Kind, LoggedEvent, logged

logger = logging.getLogger(__name__)

VERSION = b"1"
MAX_FRAME = 1 << 20
"""A frame of more bytes is nobody's who keeps to this page."""

MAX_TASKS = 10_000
MAX_BYTES = 1 << 20
MAX_AGENTS = 100


class _Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    seq: int
    sub: int
    turn: int
    kind: Kind
    at: int
    payload: msgspec.Raw


class _Told(msgspec.Struct, array_like=True, frozen=True, gc=False):
    task_id: str
    seq: int
    sub: int
    records: tuple[_Record, ...] = ()


class _Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    told: tuple[_Told, ...]
    agents: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Frame)


class Outbox:
    """What is to be told next, until it is taken: of each task, the records that came since.

    Bounded, as a bus may be slow: beyond ``MAX_BYTES`` of events only where a log stands is kept,
    and beyond ``MAX_TASKS`` nothing.
    """

    def __init__(self, sender: str) -> None:
        self._start = VERSION + quote(sender, safe="").encode() + b" "
        self._tasks: dict[str, list[LoggedEvent]] = {}
        self._agents: set[str] = set()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._tasks or self._agents)

    def add(self, records: Sequence[LoggedEvent]) -> bool:
        """Add one append's records. Return whether they are the first of anything to be told."""
        is_first = not self._tasks and not self._agents
        task_id = records[0].task_id
        held = self._tasks.get(task_id)
        if held is None:
            if len(self._tasks) >= MAX_TASKS:
                return False
            held = self._tasks[task_id] = []
        if self._bytes < MAX_BYTES:
            self._bytes += sum([len(record.payload) for record in records])
            held.extend(records)
        else:
            mark = msgspec.structs.replace(records[-1], payload=b"")
            if held and not held[-1].payload:
                held[-1] = mark
            else:
                held.append(mark)
        return is_first

    def add_work(self, agent: str) -> bool:
        """Add an agent that has work. Return whether it is the first of anything to be told."""
        is_first = not self._tasks and not self._agents
        if len(self._agents) < MAX_AGENTS:
            self._agents.add(agent)
        return is_first

    def clear(self) -> None:
        """Drop everything."""
        self._tasks = {}
        self._agents = set()
        self._bytes = 0

    def frames(self, limit: int) -> list[bytes]:
        """Take everything, as few frames of up to ``limit`` bytes each.

        A record that does not fit into a frame of its own is left out, and only where the log
        stands is said.
        """
        tasks, agents = self._tasks, self._agents
        self.clear()
        room = limit - len(self._start) - len(b"[[],[]]")
        return list(self._packed(_told(tasks.values(), room), agents, room))

    def frames_by_task(self, limit: int) -> Iterator[tuple[str, bytes]]:
        """Take what is to be told of tasks: each task's id, and a frame about it alone."""
        tasks, self._tasks = self._tasks, {}
        self._bytes = 0
        room = limit - len(self._start) - len(b"[[],[]]")
        for task_id, records in tasks.items():
            for told in _told((records,), room):
                yield task_id, b"%b[[%b]]" % (self._start, told)

    def nothing(self) -> bytes:
        """Return a frame that says nothing; the sender knows by it that it is heard."""
        return b"%b[[],[]]" % self._start

    def is_own(self, frame: bytes) -> bool:
        """Whether a frame is from here."""
        return frame.startswith(self._start)

    def _packed(self, told: Iterable[bytes], agents: Iterable[str], room: int) -> Iterator[bytes]:
        held: list[bytes] = []
        size = 0
        for piece in told:
            if held and size + len(piece) > room:
                yield b"%b[[%b]]" % (self._start, b",".join(held))
                held, size = [], 0
            held.append(piece)
            size += len(piece) + 1
        names: list[bytes] = []
        for name in map(_encode, agents):
            if (held or names) and size + len(name) > room:
                yield b"%b[[%b],[%b]]" % (self._start, b",".join(held), b",".join(names))
                held, names, size = [], [], 0
            names.append(name)
            size += len(name) + 1
        if held or names:
            yield b"%b[[%b],[%b]]" % (self._start, b",".join(held), b",".join(names))


def _told(tasks: Iterable[Sequence[LoggedEvent]], room: int) -> Iterator[bytes]:
    """Return what is to be told of tasks, in pieces of up to ``room`` bytes."""
    for records in tasks:
        head = len(records[0].task_id) + 60
        held: list[_Record] = []
        size = head
        for n, record in enumerate(records):
            # 60 bytes are more than the brackets and the five short fields of a record take.
            length = len(record.payload) + 60
            if not record.payload or head + length > room:
                last = records[-1]
                # What comes after a record that is left out would be a gap, so it is left out too.
                yield _encode(_Told(record.task_id, last.seq, last.sub, tuple(held)))
                break
            if size + length > room:
                before = held[-1]
                yield _encode(_Told(record.task_id, before.seq, before.sub, tuple(held)))
                held, size = [], head
            held.append(_line(record))
            size += length
            if n == len(records) - 1:
                yield _encode(_Told(record.task_id, record.seq, record.sub, tuple(held)))


def _line(record: LoggedEvent) -> _Record:
    payload = msgspec.Raw(record.payload)
    return _Record(record.seq, record.sub, record.turn, record.kind, record.at, payload)


def _logged(task_id: str, line: _Record) -> LoggedEvent:
    """Return the record of a task that a line holds. Raises ``ValueError`` for what cannot be."""
    if line.seq < 1 or line.sub < 0 or line.kind.is_public != (line.sub == 0):
        raise ValueError(f"there is no record {line.seq}.{line.sub} of the kind {line.kind.value}")
    payload = bytes(line.payload)
    record = logged(task_id, line.seq, line.sub, line.turn, line.kind, line.at, payload)
    event = record.event
    owner = event.id if isinstance(event, Task) else getattr(event, "task_id", task_id)
    if owner != task_id:
        raise ValueError("it has an event of one task among those of another")
    return record


class FrameReader:
    """Hands what frames say to those in this process who care. Never raises for what is in them."""

    def __init__(self, hints: LocalHints) -> None:
        self._hints = hints
        self._has_complained = False

    def read(self, frame: bytes) -> None:
        """Pass on what a frame says."""
        version, (_, space, body) = frame[:1], frame.partition(b" ")
        if version != VERSION or not space or len(frame) > MAX_FRAME:
            self._complain("it is no frame of this version")
            return
        hints = self._hints
        try:
            found = _decoder.decode(body)
            # All of it is read before any is passed on, so nothing is passed on of a broken one.
            told = [
                (task, [_logged(task.task_id, record) for record in task.records])
                for task in found.told
                if hints.is_watched(task.task_id)
            ]
        except (ValueError, RecursionError) as error:
            self._complain(str(error))
            return
        for task, records in told:
            hints.publish(records)
            if not records or (records[-1].seq, records[-1].sub) < (task.seq, task.sub):
                hints.news(task.task_id, task.seq)
        for agent in found.agents:
            hints.work(agent)

    def _complain(self, reason: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning("the bus brings what cannot be read, and is ignored: %s", reason)
