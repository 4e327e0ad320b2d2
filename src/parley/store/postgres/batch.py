"""What a group of jobs writes to PostgreSQL: one statement, put together from what there is.

The statement moves the writer's row to the group's number, and everything else depends on that row
being of the writer's generation. A head moves only from the version that the writer knows; what
belongs to a task whose head did not move is not written, and the row says of which (``missed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from parley.model.encoding import encode
from parley.store.head import Head
from parley.store.postgres.connection import Flags, Ints, Link, Texts, blobs, flags, ints, texts
from parley.store.sql import filled, pieces, queries
from parley.store.sql_engine.batch import Batch, Job, columns, head_of, pushes_of
from parley.store.task_store import (
    HISTORY_KEPT,
    PushRecord,
    Receipt,
    Scope,
)

_FILES = ("pieces.sql", "batch.sql")
_WRITE = queries("postgres", *_FILES)["write"]
_PIECES = pieces("postgres", *_FILES)


@cache
def _statement(schema: str, names: frozenset[str]) -> str:
    """Return the statement that writes what these pieces write."""
    heads = [name for name in ("moved", "created") if name in names]
    others = [name for name in _PIECES if name in names and name not in heads]
    steps = ", ".join([_PIECES[name] for name in (*heads, "_".join(["done", *heads]), *others)])
    missed = _PIECES["missed_keys" if heads else "nothing"]
    noted = _PIECES["moved_cursors" if "cursors" in names else "nothing"]
    words = {"steps": steps, "missed": missed, "noted": noted}
    return filled({"": _WRITE}, words | {"schema": schema, "kept": HISTORY_KEPT})[""]


class Moved(NamedTuple):
    """A webhook of which it was noted how far it was told: the task, the id, the revision."""

    task_id: str
    push_id: str
    revision: str


class PostgresBatch(Batch):
    """The rows that a group of jobs adds and changes.

    ``versions`` are those of the known heads by task key; those of the heads that are found are
    added. A ``careful`` batch is one of a transaction in which the heads are locked.
    """

    def __init__(
        self, link: Link, sql: dict[str, str], versions: dict[int, int], **options: Any
    ) -> None:
        super().__init__(**options)
        self._link = link
        self._sql = sql
        self._versions = versions
        self._receipts: list[tuple[Any, ...]] = []
        self._exchanges: list[tuple[Any, ...]] = []
        self._put: dict[tuple[int, str, str], PushRecord] = {}
        self._cursors: dict[Moved, PushRecord] = {}

    def look_up(self, jobs: Sequence[Job]) -> None:
        """Find the heads that ``jobs`` need, and lock them if the batch is careful."""
        if names := self.wanted(jobs):
            query = self._sql["lock_heads" if self.careful else "heads"]
            for version, *row in self._link.rows(query, (texts(names),)):
                head = head_of(row)
                self._versions[head.key] = version
                self._found[head.task_id] = head

    def has_receipt(self, scope: Scope, message_id: str) -> bool:
        """Return whether there is a receipt for a message, before the batch is written."""
        return bool(self._link.rows(self._sql["receipt"], (*columns(scope), message_id)))

    def add_receipts(self, scope: Scope, receipts: Sequence[Receipt], key: int = 0) -> None:
        """Add receipts, which come with a change of the task with this key, if with any."""
        self._receipts += [
            (key, *columns(scope), r.message_id, r.digest, r.task_id, r.turn, r.reply)
            for r in receipts
        ]

    def add_exchange(
        self, scope: Scope, context_id: str, messages: Sequence[bytes], key: int = 0
    ) -> None:
        """Add messages to the history of a context, with a change of a task, if with any."""
        self._exchanges += [(key, *columns(scope), context_id, message) for message in messages]

    def read_pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, before the batch is written."""
        return pushes_of(self._link.rows(self._sql["pushes"], (task_id,)))

    def put_push(self, head: Head, push: PushRecord) -> None:
        """Keep a push notification configuration, in place of that of its id."""
        self._put[head.key, head.scope.agent, push.id] = push
        # The task's head stays as it is, but others must find that something of it changed.
        self.heads.setdefault(head.task_id, head)

    def move_push(self, task_id: str, push: PushRecord) -> Moved:
        """Note how far a webhook was told. Return by what to ask ``told`` of it."""
        name = Moved(task_id, push.id, push.revision)
        self._cursors[name] = push
        return name

    def values(self) -> tuple[str, dict[str, Any]] | None:
        """Return the names of the pieces to write, separated by commas, and their values."""
        values: dict[str, Any] = {}
        names: list[str] = []

        def piece(name: str, **arrays: Any) -> None:
            names.append(name)
            values.update(arrays)

        moved, created, counts = self._split()
        if moved:
            piece("moved", **_heads("m", moved))
            values["m_version"] = ints([self._versions[head.key] for head in moved])
        if created:
            piece("created", **_heads("c", created), **_names("c", created))
        if moved or created:
            values["keys"] = ints([head.key for head in (*moved, *created)])
        if counts:
            task, agent, tenant, owner, state, more = zip(*counts, strict=True)
            scope = _scope("n", agent, tenant, owner)
            piece("counts", n_task=ints(task), **scope, n_state=texts(state), n_more=ints(more))
        if self._records:
            task, seq, sub, turn, kind, at, payload = zip(*self._records, strict=True)
            piece("records", r_task=ints(task), r_seq=ints(seq), r_sub=ints(sub))
            values |= {"r_turn": ints(turn), "r_kind": texts(kind), "r_at": ints(at)}
            values["r_payload"] = blobs(payload)
        if self._messages:
            task, n, body = zip(*self._messages, strict=True)
            piece("messages", s_task=ints(task), s_n=ints(n), s_body=blobs(body))
        if self._replaced:
            o_task, o_n = (ints(column) for column in zip(*self._replaced, strict=True))
            piece("replaced", o_task=o_task, o_n=o_n, o_seq=ints(list(self._replaced.values())))
        if self._artifacts:
            rows = [row for rows in self._artifacts.values() for row in rows]
            task, n, seq, head, parts = zip(*rows, strict=True)
            piece("artifacts", a_task=ints(task), a_n=ints(n), a_seq=ints(seq))
            values |= {"a_head": blobs(head), "a_parts": blobs(parts)}
        if self._receipts:
            task, agent, tenant, owner, name, digest, ids, turn, reply = zip(
                *self._receipts, strict=True
            )
            piece("receipts", k_task=ints(task), **_scope("k", agent, tenant, owner))
            values |= {"k_message_id": texts(name), "k_digest": blobs(digest)}
            values |= {"k_task_id": texts(ids), "k_turn": ints(turn), "k_reply": blobs(reply)}
        if self._exchanges:
            task, agent, tenant, owner, context_id, message = zip(*self._exchanges, strict=True)
            piece("exchange", e_task=ints(task), **_scope("e", agent, tenant, owner))
            values |= {"e_context_id": texts(context_id), "e_message": blobs(message)}
        if self._put:
            piece("pushes", p_task=ints([key for key, _, _ in self._put]))
            values |= _pushes("p", list(self._put.values()))
            values["p_agent"] = texts([agent for _, agent, _ in self._put])
            values["p_config"] = blobs([encode(push.config) for push in self._put.values()])
            values["p_version"] = texts([push.version for push in self._put.values()])
            values["p_holder"] = texts([push.lease_owner for push in self._put.values()])
        if self._cursors:
            piece("cursors", w_task_id=texts([moved.task_id for moved in self._cursors]))
            values |= _pushes("w", list(self._cursors.values()))
            values["w_n"] = ints(range(len(self._cursors)))
        if not names:
            return None
        return ",".join(names), values | {"at": self.at}

    def _split(self) -> tuple[list[Head], list[Head], list[tuple[Any, ...]]]:
        """Return the heads that moved, those that are new, and the counts that change with them."""
        moved, created, counts = [], [], []
        for task_id, head in self.heads.items():
            before = self.before(task_id)
            if before is None:
                created.append(head)
            else:
                moved.append(head)
            if before is None or head.state is not before.state:
                counts.append((head.key, *columns(head.scope), head.state.value, 1))
                if before is not None:
                    counts.append((head.key, *columns(head.scope), before.state.value, -1))
        # In the order of keys, so that two replicas hardly ever wait for each other.
        moved.sort(key=lambda head: head.key)
        return moved, created, counts

    def told(self, numbers: Sequence[int]) -> set[Moved]:
        """Return the webhooks whose moves were noted, given what the statement returned."""
        names = list(self._cursors)
        return {names[n] for n in numbers}


def statement(schema: str, names: str) -> str:
    """Return the statement that writes what ``values`` returned."""
    return _statement(schema, frozenset(names.split(",")))


def _heads(to: str, heads: Sequence[Head]) -> dict[str, Ints | Texts | Flags]:
    """Return what changes with an append."""
    return {
        f"{to}_key": ints([h.key for h in heads]),
        f"{to}_seq": ints([h.seq for h in heads]),
        f"{to}_sub": ints([h.sub for h in heads]),
        f"{to}_turn": ints([h.turn for h in heads]),
        f"{to}_epoch": ints([h.epoch for h in heads]),
        f"{to}_turn_open": flags([h.turn_open for h in heads]),
        f"{to}_waiting": ints([h.waiting for h in heads]),
        f"{to}_cancel_requested": flags([h.cancel_requested for h in heads]),
        f"{to}_holder": texts([h.lease_owner for h in heads]),
        f"{to}_place": ints([h.place for h in heads]),
        f"{to}_state": texts([h.state.value for h in heads]),
        f"{to}_status_at": ints([h.status_at for h in heads]),
        f"{to}_ended_at": ints([h.ended_at for h in heads]),
        f"{to}_messages": ints([h.messages for h in heads]),
        f"{to}_folded": ints([h.folded for h in heads]),
        f"{to}_has_status_message": flags([h.has_status_message for h in heads]),
    }


def _names(to: str, heads: Sequence[Head]) -> dict[str, Texts]:
    """Return what stays as it is."""
    agent, tenant, owner = zip(*[columns(h.scope) for h in heads], strict=True)
    return {
        f"{to}_task_id": texts([h.task_id for h in heads]),
        f"{to}_context_id": texts([h.context_id for h in heads]),
        **_scope(to, agent, tenant, owner),
    }


def _scope(
    to: str, agent: Sequence[str], tenant: Sequence[str], owner: Sequence[str]
) -> dict[str, Texts]:
    return {
        f"{to}_agent": texts(agent),
        f"{to}_tenant": texts(tenant),
        f"{to}_owner": texts(owner),
    }


def _pushes(to: str, pushes: Sequence[PushRecord]) -> dict[str, Ints | Texts]:
    return {
        f"{to}_id": texts([push.id for push in pushes]),
        f"{to}_revision": texts([push.revision for push in pushes]),
        f"{to}_cursor": ints([push.cursor for push in pushes]),
        f"{to}_state": texts([push.state.value for push in pushes]),
        f"{to}_note": texts([push.note for push in pushes]),
    }
