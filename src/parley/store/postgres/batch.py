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
from parley.store.sql_engine.batch import Batch, Job, columns, head_of, pushes_of
from parley.store.task_store import (
    HISTORY_KEPT,
    PushRecord,
    Receipt,
    Scope,
)

_ME = """me AS MATERIALIZED (
    SELECT 1 FROM {schema}.replicas
    WHERE id = %(replica)s AND generation = %(generation)s AND buried_at IS NULL FOR UPDATE)"""

_PIECES = {
    # The heads of tasks that went on.
    "moved": """moved AS (
    UPDATE {schema}.tasks t SET
        version = t.version + 1, seq = m.seq, sub = m.sub, turn = m.turn, epoch = m.epoch,
        turn_open = m.turn_open, waiting = m.waiting, cancel_requested = m.cancel_requested,
        holder = m.holder, place = m.place, state = m.state, status_at = m.status_at,
        ended_at = m.ended_at, messages = m.messages, folded = m.folded,
        has_status_message = m.has_status_message
    FROM me, unnest(
        %(m_key)s, %(m_version)s, %(m_seq)s, %(m_sub)s, %(m_turn)s, %(m_epoch)s,
        %(m_turn_open)s, %(m_waiting)s, %(m_cancel_requested)s, %(m_holder)s, %(m_place)s,
        %(m_state)s, %(m_status_at)s, %(m_ended_at)s, %(m_messages)s, %(m_folded)s,
        %(m_has_status_message)s)
        AS m (key, version, seq, sub, turn, epoch, turn_open, waiting, cancel_requested, holder,
            place, state, status_at, ended_at, messages, folded, has_status_message)
    WHERE t.key = m.key AND t.version = m.version
    RETURNING t.key)""",
    # The heads of new tasks.
    "created": """created AS (
    INSERT INTO {schema}.tasks (
        key, version, task_id, agent, tenant, owner, context_id, seq, sub, turn, epoch, turn_open,
        waiting, cancel_requested, holder, place, state, status_at, ended_at, messages, folded,
        has_status_message)
    SELECT
        c.key, 1, c.task_id, c.agent, c.tenant, c.owner, c.context_id, c.seq, c.sub, c.turn,
        c.epoch, c.turn_open, c.waiting, c.cancel_requested, c.holder, c.place, c.state,
        c.status_at, c.ended_at, c.messages, c.folded, c.has_status_message
    FROM me, unnest(
        %(c_key)s, %(c_task_id)s, %(c_agent)s, %(c_tenant)s, %(c_owner)s, %(c_context_id)s,
        %(c_seq)s, %(c_sub)s, %(c_turn)s, %(c_epoch)s, %(c_turn_open)s, %(c_waiting)s,
        %(c_cancel_requested)s, %(c_holder)s, %(c_place)s, %(c_state)s, %(c_status_at)s,
        %(c_ended_at)s, %(c_messages)s, %(c_folded)s, %(c_has_status_message)s)
        AS c (key, task_id, agent, tenant, owner, context_id, seq, sub, turn, epoch, turn_open,
            waiting, cancel_requested, holder, place, state, status_at, ended_at, messages, folded,
            has_status_message)
    ON CONFLICT (task_id) DO NOTHING
    RETURNING key)""",
    "records": """records AS (
    INSERT INTO {schema}.log (task, seq, sub, turn, kind, at, payload)
    SELECT r.* FROM unnest(
        %(r_task)s, %(r_seq)s, %(r_sub)s, %(r_turn)s, %(r_kind)s, %(r_at)s, %(r_payload)s)
        AS r (task, seq, sub, turn, kind, at, payload)
    WHERE r.task IN (SELECT key FROM done))""",
    # The stored form of tasks. The pieces of an artifact that is replaced end before the new one.
    "messages": """messages AS (
    INSERT INTO {schema}.task_messages (task, n, body)
    SELECT s.* FROM unnest(%(s_task)s, %(s_n)s, %(s_body)s) AS s (task, n, body)
    WHERE s.task IN (SELECT key FROM done))""",
    "replaced": """replaced AS (
    DELETE FROM {schema}.task_artifacts a
    USING unnest(%(o_task)s, %(o_n)s, %(o_seq)s) AS o (task, n, seq)
    WHERE a.task = o.task AND a.n = o.n AND a.seq < o.seq
        AND o.task IN (SELECT key FROM done))""",
    "artifacts": """artifacts AS (
    INSERT INTO {schema}.task_artifacts (task, n, seq, head, parts)
    SELECT a.* FROM unnest(%(a_task)s, %(a_n)s, %(a_seq)s, %(a_head)s, %(a_parts)s)
        AS a (task, n, seq, head, parts)
    WHERE a.task IN (SELECT key FROM done)
    ON CONFLICT (task, n, seq) DO UPDATE SET head = excluded.head, parts = excluded.parts)""",
    # In order, so that two replicas never wait for each other.
    "counts": """counts AS (
    INSERT INTO {schema}.task_counts (agent, tenant, owner, state, slot, n)
    SELECT agent, tenant, owner, state, %(slot)s, sum(n) FROM unnest(
        %(n_task)s, %(n_agent)s, %(n_tenant)s, %(n_owner)s, %(n_state)s, %(n_more)s)
        AS n (task, agent, tenant, owner, state, n)
    WHERE n.task IN (SELECT key FROM done)
    GROUP BY agent, tenant, owner, state HAVING sum(n) <> 0
    ORDER BY agent, tenant, owner, state
    ON CONFLICT (agent, tenant, owner, state, slot) DO UPDATE
    SET n = task_counts.n + excluded.n)""",
    "receipts": """receipts AS (
    INSERT INTO {schema}.receipts (
        agent, tenant, owner, message_id, digest, task_id, turn, reply, at)
    SELECT r.agent, r.tenant, r.owner, r.message_id, r.digest, r.task_id, r.turn, r.reply, %(at)s
    FROM me, unnest(
        %(k_task)s, %(k_agent)s, %(k_tenant)s, %(k_owner)s, %(k_message_id)s, %(k_digest)s,
        %(k_task_id)s, %(k_turn)s, %(k_reply)s)
        AS r (task, agent, tenant, owner, message_id, digest, task_id, turn, reply)
    WHERE r.task = 0 OR r.task IN (SELECT key FROM done)
    ORDER BY r.agent, r.tenant, r.owner, r.message_id)""",
    "exchange": """said AS MATERIALIZED (
    SELECT e.*, row_number() OVER (
        PARTITION BY agent, tenant, owner, context_id ORDER BY ordinal) AS n
    FROM me, unnest(
        %(e_task)s, %(e_agent)s, %(e_tenant)s, %(e_owner)s, %(e_context_id)s, %(e_message)s)
        WITH ORDINALITY AS e (task, agent, tenant, owner, context_id, message, ordinal)
    WHERE e.task = 0 OR e.task IN (SELECT key FROM done)),
touched AS (
    INSERT INTO {schema}.contexts AS c (agent, tenant, owner, context_id, said, touched_at)
    SELECT agent, tenant, owner, context_id, count(*), %(at)s FROM said
    GROUP BY agent, tenant, owner, context_id ORDER BY agent, tenant, owner, context_id
    ON CONFLICT (agent, tenant, owner, context_id) DO UPDATE SET
        said = c.said + excluded.said, touched_at = greatest(c.touched_at, excluded.touched_at)
    RETURNING c.key, c.agent, c.tenant, c.owner, c.context_id, c.said),
history AS (
    INSERT INTO {schema}.history (context, n, message)
    SELECT touched.key, touched.said - total.n + said.n, said.message
    FROM said
    JOIN (SELECT agent, tenant, owner, context_id, max(n) AS n FROM said
        GROUP BY agent, tenant, owner, context_id) total
        USING (agent, tenant, owner, context_id)
    JOIN touched USING (agent, tenant, owner, context_id)),
trimmed AS (
    DELETE FROM {schema}.history h USING touched
    WHERE h.context = touched.key AND h.n <= touched.said - {kept})""",
    "pushes": """pushes AS (
    INSERT INTO {schema}.pushes (
        task, id, agent, revision, config, version, cursor, state, note, holder)
    SELECT p.* FROM unnest(
        %(p_task)s, %(p_id)s, %(p_agent)s, %(p_revision)s, %(p_config)s, %(p_version)s,
        %(p_cursor)s, %(p_state)s, %(p_note)s, %(p_holder)s)
        AS p (task, id, agent, revision, config, version, cursor, state, note, holder)
    WHERE p.task IN (SELECT key FROM done)
    ON CONFLICT (task, id) DO UPDATE SET
        revision = excluded.revision, config = excluded.config, version = excluded.version,
        state = excluded.state, note = excluded.note, holder = excluded.holder)""",
    # How far webhooks were told, each for the one that tells it.
    "cursors": """cursors AS (
    UPDATE {schema}.pushes p SET cursor = w.cursor, state = w.state, note = w.note
    FROM me, unnest(
        %(w_task_id)s, %(w_id)s, %(w_revision)s, %(w_cursor)s, %(w_state)s, %(w_note)s, %(w_n)s)
        AS w (task_id, id, revision, cursor, state, note, n)
    JOIN {schema}.tasks t ON t.task_id = w.task_id
    WHERE p.task = t.key AND p.id = w.id AND p.revision = w.revision AND p.holder = %(replica)s
    RETURNING w.n)""",
}

_DONE = {
    (True, True): "SELECT key FROM moved UNION ALL SELECT key FROM created",
    (True, False): "SELECT key FROM moved",
    (False, True): "SELECT key FROM created",
    (False, False): "SELECT 0::bigint AS key WHERE false",
}

_NOTHING = "'{}'::bigint[]"
_MISSED = """ARRAY(
        SELECT key FROM unnest(%(keys)s) AS k (key)
        WHERE key NOT IN (SELECT key FROM done))"""
_TOLD = "ARRAY(SELECT n FROM cursors)"


@cache
def _statement(schema: str, pieces: frozenset[str]) -> str:
    """Return the statement that writes what these pieces write."""
    heads = [name for name in ("moved", "created") if name in pieces]
    rest = [name for name in _PIECES if name in pieces and name not in heads]
    done = "done AS MATERIALIZED (" + _DONE["moved" in pieces, "created" in pieces] + ")"
    parts = [_ME, *[_PIECES[name] for name in heads], done, *[_PIECES[name] for name in rest]]
    missed = _MISSED if heads else _NOTHING
    told = _TOLD if "cursors" in pieces else _NOTHING
    text = f"""WITH {", ".join(parts)}
UPDATE {{schema}}.replicas r SET grp = %(grp)s, missed = {missed}, noted = {told}
FROM me WHERE r.id = %(replica)s
RETURNING r.missed, r.noted"""
    return text.replace("{schema}", schema).replace("{kept}", str(HISTORY_KEPT))


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
        pieces: list[str] = []

        def piece(name: str, **arrays: Any) -> None:
            pieces.append(name)
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
            names = zip(*self._replaced, strict=True)
            o_task, o_n = (ints(column) for column in names)
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
        if not pieces:
            return None
        return ",".join(pieces), values | {"at": self.at}

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


def statement(schema: str, pieces: str) -> str:
    """Return the statement that writes what ``values`` returned."""
    return _statement(schema, frozenset(pieces.split(",")))


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
