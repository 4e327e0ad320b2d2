"""What a store keeps, as lines of JSON: for backups, and for moving to another store.

A file begins with a header and ends with a trailer, which counts what is between them and holds a
hash of it; so a file that was cut or changed is noticed. Between them stand, in this order:
contexts, each followed by its messages and values; receipts; tasks, the oldest first, each followed
by its whole log and its webhooks. The stored form of tasks is not among it: it is made from the log
again.
Who holds what is not either: in another store nobody does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from parley.model.tasks import TaskState
from parley.store.events import Kind
from parley.store.snapshot import StoredForm
from parley.store.task_store import PushState, StoreError

FORMAT = 1


class TransferError(StoreError):
    """A file cannot be imported; nothing of it was. The message says where it is wrong."""


class ExportLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag=str.lower):
    """A line of the file."""


class Header(ExportLine, frozen=True, kw_only=True, tag="parley-store"):
    """The first line."""

    format: int
    by: str


class Context(ExportLine, frozen=True, kw_only=True):
    """A context in which an agent keeps something; ``said`` messages follow it."""

    agent: str
    tenant: str
    owner: str
    context_id: str
    said: int
    touched_at: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        """What tells it from other contexts."""
        return self.agent, self.tenant, self.owner, self.context_id


class Said(ExportLine, frozen=True, kw_only=True):
    """A message of the context before it."""

    message: msgspec.Raw


class Value(ExportLine, frozen=True, kw_only=True):
    """A value of the context before it."""

    key: str
    value: bytes


class KeptReceipt(ExportLine, frozen=True, kw_only=True, tag="receipt"):
    """How a message that its sender may repeat was answered."""

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
        """What tells it from other receipts."""
        return self.agent, self.tenant, self.owner, self.message_id


class KeptTask(ExportLine, frozen=True, kw_only=True, tag="task"):
    """A task's head, as in ``head.Head``; its log and its webhooks follow it."""

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
    place: int


class Record(ExportLine, frozen=True, kw_only=True):
    """A record of the log of the task before it."""

    seq: int
    sub: int
    turn: int
    kind: Kind
    at: int
    payload: msgspec.Raw


class Push(ExportLine, frozen=True, kw_only=True, tag="webhook"):
    """A push notification configuration of the task before it, and how far it was told."""

    config: msgspec.Raw
    version: str
    revision: str
    cursor: int
    state: PushState
    note: str


class Counts(msgspec.Struct, kw_only=True):
    """How much of everything there is."""

    contexts: int = 0
    messages: int = 0
    values: int = 0
    receipts: int = 0
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
    Context: "contexts",
    Said: "messages",
    Value: "values",
    KeptReceipt: "receipts",
    KeptTask: "tasks",
    Record: "records",
    Push: "webhooks",
}
_Any = Header | Context | Said | Value | KeptReceipt | KeptTask | Record | Push | Trailer
encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(_Any).decode


class ExportSource(Protocol):
    """A store to be read, as of one moment."""

    def lines(self) -> Iterator[ExportLine]:
        """Return all that it keeps, in the order of the file, without header and trailer.

        Memory is bounded. Raises ``StoreUnavailable``.
        """
        ...


class ImportTarget(Protocol):
    """A store to be written to. What is written is there, all of it, after ``commit``.

    Raises ``StoreUnavailable``; what was not committed is then not there.
    """

    def contexts_there(self, contexts: Sequence[Context]) -> set[tuple[str, str, str, str]]:
        """Return the names of those that the store has."""
        ...

    def receipts_there(self, receipts: Sequence[KeptReceipt]) -> set[tuple[str, str, str, str]]:
        """Return the names of those that the store has."""
        ...

    def tasks_there(self, tasks: Sequence[KeptTask]) -> set[str]:
        """Return the ids of those that the store has."""
        ...

    def add_contexts(
        self, contexts: Sequence[Context], said: Sequence[Sequence[Said]], values: Sequence[Any]
    ) -> None:
        """Add contexts that are not there, with the messages and the values of each."""
        ...

    def add_receipts(self, receipts: Sequence[KeptReceipt]) -> None:
        """Add receipts that are not there."""
        ...

    def add_tasks(self, tasks: Sequence[KeptTask]) -> None:
        """Add tasks that are not there, in this order. Nobody holds them."""
        ...

    def add_records(self, records: Sequence[tuple[str, Record]]) -> None:
        """Add records to the logs of tasks that were added, with the task's id each."""
        ...

    def add_pushes(self, pushes: Sequence[tuple[str, str, Push]]) -> None:
        """Add configurations to tasks that were added, with the task's id and their own."""
        ...

    def add_stored(self, forms: Sequence[tuple[str, int, StoredForm]]) -> None:
        """Keep the stored form of tasks that were added, as the event of a number left them."""
        ...

    def commit(self) -> None:
        """Make what was added durable."""
        ...


def export_to(
    source: ExportSource,
    write: Callable[[bytes], object],
    *,
    by: str,
    agent: str = "",
    tenant: str = "",
) -> Counts:
    """Write all that a store keeps, or what it keeps of one agent, of one tenant, or of both.

    Memory is bounded by the longest records.
    ``by`` is the version of Parley that does it, for those who cannot read it.
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
    """Return what of a store is of one agent, of one tenant, or of both."""
    is_wanted = False
    for line in lines:
        if isinstance(line, Context | KeptReceipt | KeptTask):
            is_wanted = line.agent == (agent or line.agent) and line.tenant == (
                tenant or line.tenant
            )
        if is_wanted:  # what follows belongs to it
            yield line
