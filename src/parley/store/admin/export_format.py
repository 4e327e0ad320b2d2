"""The export format of a store, lines of JSON: for backups, and for moving to another store.

A file begins with a header and ends with a trailer, which counts the lines between them and has
their hash, so that a truncated or changed file is refused. Between them are, in this order:
contexts, each followed by its messages and values; receipts; events; tasks, the oldest first, each
followed by its whole log and its webhooks. The stored form of tasks is not exported: an import
builds it from the log. Leases and delivery histories are not exported either, nor are secrets:
another store has its own. Sleeping tasks sleep on where they are imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from parley.model.operations import PushOptions
from parley.model.tasks import TaskState
from parley.store.events import RecordKind
from parley.store.protocols.errors import StoreError
from parley.store.protocols.webhooks import PushState
from parley.store.snapshot import StoredForm

FORMAT = 1


class TransferError(StoreError):
    """A file cannot be imported; nothing of it was. The message says where the error is."""


class ExportLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="is"):
    """A line of the file."""


class Header(ExportLine, frozen=True, kw_only=True, tag="parley-store"):
    """The first line."""

    format: int
    by: str


class ExportedContext(ExportLine, frozen=True, kw_only=True, tag="context"):
    """A context; its messages, counted here, and its values follow it."""

    agent: str
    tenant: str
    owner: str
    context_id: str
    messages: int = msgspec.field(name="said")
    touched_at: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The key of the context."""
        return self.agent, self.tenant, self.owner, self.context_id


class ContextMessage(ExportLine, frozen=True, kw_only=True, tag="said"):
    """A message of the context before it."""

    message: msgspec.Raw


class ContextValue(ExportLine, frozen=True, kw_only=True, tag="value"):
    """A value of the context before it."""

    key: str
    value: bytes


class ExportedReceipt(ExportLine, frozen=True, kw_only=True, tag="receipt"):
    """The receipt of a message (see ``Receipt``)."""

    agent: str
    tenant: str
    owner: str
    message_id: str
    digest: bytes
    task_id: str
    turn: int
    reply: bytes
    at: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The key of the receipt."""
        return self.agent, self.tenant, self.owner, self.message_id


class ExportedEvent(ExportLine, frozen=True, kw_only=True, tag="event"):
    """A complete event of an agent (see ``protocols.timers``)."""

    agent: str
    key: str
    at: int
    value: msgspec.Raw

    @property
    def name(self) -> tuple[str, str]:
        """The key of the event among those of all agents."""
        return self.agent, self.key


class ExportedTask(ExportLine, frozen=True, kw_only=True, tag="task", omit_defaults=True):
    """A task's head, as in ``head.Head``; its log and its webhooks follow it.

    ``waits_for`` are the events that wake it while it sleeps.
    """

    task_id: str
    agent: str
    tenant: str
    owner: str
    context_id: str
    state: TaskState
    status_at: int
    seq: int
    sub: int
    turn: int
    turn_open: bool
    waiting: int
    cancel_requested: bool
    epoch: int
    ended_at: int | None
    queue_key: int = msgspec.field(name="place")
    wakes_at: int | None = None
    base_url: str = ""
    waits_for: tuple[str, ...] = ()


class ExportedRecord(ExportLine, frozen=True, kw_only=True, tag="record"):
    """A record of the log of the task before it."""

    seq: int
    sub: int
    turn: int
    kind: RecordKind
    at: int
    payload: msgspec.Raw


class ExportedPush(ExportLine, frozen=True, kw_only=True, tag="webhook", omit_defaults=True):
    """A push notification configuration of the task before it, and its delivery state.

    Its delivery history is not exported.
    """

    config: msgspec.Raw
    version: str
    revision: str
    cursor: int
    state: PushState
    note: str
    options: PushOptions | None = None
    confirmed: bool = False


class Counts(msgspec.Struct, kw_only=True):
    """The number of each kind of line."""

    contexts: int = 0
    messages: int = 0
    values: int = 0
    receipts: int = 0
    events: int = 0
    tasks: int = 0
    records: int = 0
    webhooks: int = 0

    def add(self, line: ExportLine) -> None:
        """Count a line."""
        name = _COUNTED[type(line)]
        setattr(self, name, getattr(self, name) + 1)


class Trailer(ExportLine, frozen=True, kw_only=True, tag="end"):
    """The last line. ``sha256`` is the hash of all lines before it."""

    counts: Counts
    sha256: str


_COUNTED: dict[type, str] = {
    ExportedContext: "contexts",
    ContextMessage: "messages",
    ContextValue: "values",
    ExportedReceipt: "receipts",
    ExportedEvent: "events",
    ExportedTask: "tasks",
    ExportedRecord: "records",
    ExportedPush: "webhooks",
}
_Any = (
    Header
    | ExportedContext
    | ContextMessage
    | ContextValue
    | ExportedReceipt
    | ExportedEvent
    | ExportedTask
    | ExportedRecord
    | ExportedPush
    | Trailer
)
encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(_Any).decode


class ExportSource(Protocol):
    """A store to export, as of one moment."""

    def lines(self) -> Iterator[ExportLine]:
        """Yield all lines in the order of the file, without header and trailer.

        Memory is bounded. Raises ``StoreUnavailable``.
        """
        ...


class ImportTarget(Protocol):
    """A store to import into. What is added is durable after ``commit``.

    Raises ``StoreUnavailable``; what was not committed is then discarded.
    """

    def contexts_there(self, contexts: Sequence[ExportedContext]) -> set[tuple[str, str, str, str]]:
        """Return the keys of those that the store has."""
        ...

    def receipts_there(self, receipts: Sequence[ExportedReceipt]) -> set[tuple[str, str, str, str]]:
        """Return the keys of those that the store has."""
        ...

    def events_there(self, events: Sequence[ExportedEvent]) -> set[tuple[str, str]]:
        """Return the keys of those that the store has."""
        ...

    def tasks_there(self, tasks: Sequence[ExportedTask]) -> set[str]:
        """Return the ids of those that the store has."""
        ...

    def add_contexts(
        self,
        contexts: Sequence[ExportedContext],
        messages: Sequence[Sequence[ContextMessage]],
        values: Sequence[Any],
    ) -> None:
        """Add new contexts, with the messages and the values of each."""
        ...

    def add_receipts(self, receipts: Sequence[ExportedReceipt]) -> None:
        """Add new receipts."""
        ...

    def add_events(self, events: Sequence[ExportedEvent]) -> None:
        """Add new events."""
        ...

    def add_tasks(self, tasks: Sequence[ExportedTask]) -> None:
        """Add new tasks, in this order, without lease owners.

        One that sleeps is due at once if an event that it waits for is complete in the store.
        """
        ...

    def add_records(self, records: Sequence[tuple[str, ExportedRecord]]) -> None:
        """Add records to the logs of added tasks, each with its task's id."""
        ...

    def add_pushes(self, pushes: Sequence[tuple[str, str, ExportedPush]]) -> None:
        """Add configurations to added tasks, each with its task's id and its own."""
        ...

    def add_stored(self, forms: Sequence[tuple[str, int, StoredForm]]) -> None:
        """Store the stored form of added tasks, each with the number of its last event."""
        ...

    def commit(self) -> None:
        """Make the additions durable."""
        ...


def export_to(
    source: ExportSource,
    write: Callable[[bytes], object],
    *,
    by: str,
    agent: str = "",
    tenant: str = "",
) -> Counts:
    """Export a store, or the part of one agent, of one tenant, or of both.

    Memory is bounded by the longest records.
    ``by`` is the version of Parley that writes the file; errors of older versions name it.
    """
    counts, digest = Counts(), hashlib.sha256()

    def put(line: ExportLine) -> None:
        text = encode_line(line) + b"\n"
        digest.update(text)
        write(text)

    put(Header(format=FORMAT, by=by))
    for line in only(source.lines(), agent=agent, tenant=tenant):
        counts.add(line)
        put(line)
    write(encode_line(Trailer(counts=counts, sha256=digest.hexdigest())) + b"\n")
    return counts


def only(lines: Iterable[ExportLine], *, agent: str = "", tenant: str = "") -> Iterator[ExportLine]:
    """Yield the lines of one agent, of one tenant, or of both."""
    is_wanted = False
    for line in lines:
        if isinstance(line, ExportedContext | ExportedReceipt | ExportedTask):
            is_wanted = line.agent == (agent or line.agent) and line.tenant == (
                tenant or line.tenant
            )
        elif isinstance(line, ExportedEvent):  # it is the agent's, and no tenant's
            is_wanted = line.agent == (agent or line.agent) and not tenant
        if is_wanted:  # the lines after it belong to it
            yield line
