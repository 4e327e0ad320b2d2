"""A transaction on either database, and changes of entries in it. Each function needs a transaction
of its own.

An identifier is listed once. A change of an entry's standing reads all entries of its identifier,
and lists the strongest, then oldest, permitted entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from parley.registry.index.prepared import Prepared
from parley.registry.records import AUTHORITIES, Authority, EntryStanding, Trust

Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Mapping[str, Any]

NOTHING: Values = MappingProxyType({})

OWN = "entries.sql"
"""The file of named statements that each database writes differently, for many rows at a time."""

SHARED = ("sources.sql", "health.sql", "domains.sql", "acts.sql")
"""The files of statements shared by all databases, with database-specific words in braces."""

WORDS = "words.sql"


class Session:
    """Runs named statements of ``registry/sql/``, with named values, in a transaction.

    ``execute`` runs a statement and returns its cursor; ``many`` runs it for each of several rows
    with the same names. ``listed`` encodes several values as one.
    """

    def __init__(
        self,
        execute: Callable[[str, Values], Any],
        many: Callable[[str, Sequence[Values]], object],
        listed: Callable[[Sequence[Any]], Any],
    ) -> None:
        self._execute = execute
        self.many = many
        self.listed = listed

    def rows(self, name: str, values: Values = NOTHING) -> list[Row]:
        """Return the rows of a statement."""
        found: list[Row] = self._execute(name, values).fetchall()
        return found

    def change(self, name: str, values: Values) -> int:
        """Execute a statement; return the number of changed rows."""
        return int(self._execute(name, values).rowcount)


def as_json(value: Any) -> str:
    """Return a value as JSON, bytes as base64."""
    return msgspec.json.encode(value).decode()


# Differences of cards.

MAX_OPERATIONS = 200
"""A difference with more operations becomes one operation that replaces everything."""

MAX_DEPTH = 64
"""Below this depth, a differing value is replaced as a whole."""

Operation = Mapping[str, Any]


def difference(before: Any, after: Any) -> tuple[Operation, ...]:
    """Return the operations that turn ``before`` into ``after``, in the order to apply them."""
    operations: list[Operation] = []
    for operation in _compare("", before, after, 0):
        operations.append(operation)
        if len(operations) > MAX_OPERATIONS:
            return ({"op": "replace", "path": "", "value": after},)
    return tuple(operations)


def card_difference(before: bytes, after: bytes) -> tuple[Operation, ...]:
    """Return the difference of two cards; an invalid or too deeply nested card counts as null."""
    try:
        return difference(_read(before), _read(after))
    except RecursionError:
        return ({"op": "replace", "path": "", "value": None},)


def _read(card: bytes) -> Any:
    try:
        return msgspec.json.decode(card)
    except (msgspec.DecodeError, RecursionError):
        return None


def _compare(path: str, before: Any, after: Any, depth: int) -> Iterator[Operation]:
    if _is_same(before, after):
        return
    if depth < MAX_DEPTH and isinstance(before, dict) and isinstance(after, dict):
        yield from _compare_members(path, before, after, depth)
    elif depth < MAX_DEPTH and isinstance(before, list) and isinstance(after, list):
        yield from _compare_items(path, before, after, depth)
    else:
        yield {"op": "replace", "path": path, "value": after}


def _compare_members(
    path: str, before: dict[str, Any], after: dict[str, Any], depth: int
) -> Iterator[Operation]:
    for name, value in before.items():
        if name not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
        else:
            yield from _compare(f"{path}/{_escaped(name)}", value, after[name], depth + 1)
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": f"{path}/{_escaped(name)}", "value": value}


def _compare_items(
    path: str, before: Sequence[Any], after: Sequence[Any], depth: int
) -> Iterator[Operation]:
    """Compare the middle of two lists, between their common beginning and end.

    Items with the same ``id`` or ``name`` correspond to each other, in the same order.
    """
    start = 0
    while start < min(len(before), len(after)) and _is_same(before[start], after[start]):
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and _is_same(
        before[-1 - end], after[-1 - end]
    ):
        end += 1
    old, new = list(before[start : len(before) - end]), list(after[start : len(after) - end])
    known = {_identity(item) for item in new}
    for at in reversed(range(len(old))):
        if _identity(old[at]) is not None and _identity(old[at]) not in known:
            yield {"op": "remove", "path": f"{path}/{start + at}"}
            del old[at]
    for at, item in enumerate(new):
        where = f"{path}/{start + at}"
        if at >= len(old):
            yield {"op": "add", "path": where, "value": item}
        elif _identity(old[at]) == _identity(item):
            yield from _compare(where, old[at], item, depth + 1)
        elif _identity(item) is not None and len(new) > len(old):
            yield {"op": "add", "path": where, "value": item}
            old.insert(at, item)
        else:
            yield {"op": "replace", "path": where, "value": item}
    for at in reversed(range(len(new), len(old))):
        yield {"op": "remove", "path": f"{path}/{start + at}"}


def _identity(item: Any) -> str | None:
    if isinstance(item, dict):
        for name in ("id", "name", "uri", "url"):
            if isinstance(item.get(name), str):
                return f"{name} {item[name]}"
    return None


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON, where 1 is not true."""
    if type(one) is not type(other):
        numbers = (int, float)
        return type(one) in numbers and type(other) in numbers and bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


CARDS_KEPT = 50
"""The number of versions of a card stored."""

LISTED, SHADOWED = EntryStanding.LISTED.value, EntryStanding.SHADOWED.value
IMPORTED = AUTHORITIES.index(Authority.OPERATOR)
HELD, REJECTED = EntryStanding.HELD.value, EntryStanding.REJECTED.value
WITHDRAWN, PENDING = EntryStanding.WITHDRAWN.value, EntryStanding.PENDING.value


class _Audience(msgspec.Struct):
    """The audience in a stored draft."""

    audience: tuple[str, ...] = ()


_AUDIENCE = msgspec.json.Decoder(_Audience)


class EntryState(msgspec.Struct):
    """The columns ``state_columns``, which determine the standing of an entry."""

    key: int
    place: bytes
    identifier: str
    source: str
    authority: int = 0
    standing: str = ""
    reason: str = ""
    trust: str = ""
    is_probed: bool = False
    decided: str = ""
    decided_reason: str = ""
    decided_card: str = ""
    digest: bytes = b""
    card_digest: str = ""
    card_number: int = 0
    created_at: int = 0
    revision: int = 0


class _Put(msgspec.Struct):
    """A new or changed entry."""

    prepared: Prepared
    state: EntryState
    card: bytes | None
    is_new: bool

    @property
    def key(self) -> int:
        return self.state.key

    @property
    def standing(self) -> str:
        return self.state.standing


def put(
    session: Session, drafts: Sequence[tuple[Prepared, bytes | None]], now: int
) -> dict[bytes, int]:
    """Store drafts with their cards; return their keys by place. The last draft of a
    place is used.
    """
    [(change,)] = session.rows("lock_changes")
    by_place = {prepared.place: (prepared, card) for prepared, card in drafts}
    identifiers = {prepared.draft.identifier for prepared, _ in by_place.values()}
    states = _states(
        session.rows("states_of_identifiers", {"identifiers": session.listed(sorted(identifiers))})
    )
    before = {state.key: state.standing for state in states.values()}
    [(last_key,)] = session.rows("counter", {"name": "key"})
    first_key = last_key
    seen: list[int] = []
    puts: list[_Put] = []
    for place, (prepared, card) in by_place.items():
        state = states.get(place)
        if state is not None and state.digest == prepared.digest:
            seen.append(state.key)
            continue
        is_new = state is None
        if state is None:
            last_key += 1
            draft = prepared.draft
            state = states[place] = EntryState(
                last_key, place, draft.identifier, draft.source, created_at=now
            )
        _apply(state, prepared)
        puts.append(_Put(prepared, state, card, is_new))
    if last_key != first_key:
        session.change("set_counter", {"name": "key", "value": last_key})
    _choose_listed(states.values())
    put_keys = {each.key for each in puts}
    moved = [s for s in states.values() if s.key not in put_keys and s.standing != before[s.key]]
    if seen:
        session.change("see_entries", {"keys": session.listed(seen), "now": now})
    if not puts and not moved:
        return {place: states[place].key for place in by_place}
    # The unique index of listed identifiers must hold after each row: first unlist, then list.
    change = _move(session, [s for s in moved if s.standing != LISTED], change, now)
    change = _write(session, puts, change, now)
    change = _move(session, [s for s in moved if s.standing == LISTED], change, now)
    session.change("set_counter", {"name": "change", "value": change})
    return {place: states[place].key for place in by_place}


def withdraw(session: Session, source: str, keep: Sequence[str], reason: str, now: int) -> int:
    """Withdraw the entries of a source, except the identifiers in ``keep``; return their number."""
    session.rows("lock_changes")
    gone = _states(
        session.rows("states_of_source", {"source": source, "keep": session.listed(list(keep))})
    )
    _stand(session, {state.key: state for state in gone.values()}, WITHDRAWN, reason, now)
    return len(gone)


def withdraw_entries(session: Session, keys: Sequence[int], reason: str, now: int) -> int:
    """Withdraw some entries; return their number. Decisions of operators remain."""
    session.rows("lock_changes")
    gone: dict[int, EntryState] = {}
    for key in keys:
        for state in _states(session.rows("state", {"key": key})).values():
            if state.standing != WITHDRAWN:
                gone[state.key] = state
    _stand(session, gone, WITHDRAWN, reason, now)
    return len(gone)


def decide(
    session: Session, key: int, standing: EntryStanding, reason: str, by: str, now: int
) -> bool | str:
    """Set the standing that an operator chose. Return whether the entry exists, or why it cannot
    have the standing.
    """
    session.rows("lock_changes")
    rows = session.rows("state", {"key": key})
    if not rows:
        return False
    [state] = _states(rows).values()
    wanted = LISTED if standing is EntryStanding.SHADOWED else standing.value
    if wanted == LISTED and state.trust == Trust.FAILED.value:
        return (
            f"{state.identifier} has an invalid signature, and is never listed; its "
            "publisher can sign it again"
        )
    _stand(session, {key: state}, wanted, reason, now)
    kept = wanted if wanted in (LISTED, HELD, REJECTED) else ""
    session.change("decide", {"key": key, "decided": kept, "reason": reason, "by": by, "now": now})
    return True


def forget(session: Session, before: int, limit: int) -> int:
    """Remove entries that were withdrawn before a time; return their number."""
    session.rows("lock_changes")
    found = [key for (key,) in session.rows("forgettable", {"before": before, "limit": limit})]
    if not found:
        return 0
    keys = {"keys": session.listed(found)}
    session.many("remove_probes", [{"key": key} for key in found])
    for what in ("documents", "cards", "observations", "entries"):
        session.change(f"forget_{what}", keys)
    return len(found)


def touch(session: Session, key: int) -> None:
    """Record a change of an entry after new observations, because searches use them."""
    [(change,)] = session.rows("lock_changes")
    if session.change("touch", {"key": key, "change": change + 1}):
        session.change("set_counter", {"name": "change", "value": change + 1})


def _states(rows: Iterable[Sequence[object]]) -> dict[bytes, EntryState]:
    states = [EntryState(*row) for row in rows]  # type: ignore[arg-type]
    for state in states:
        state.place = bytes(state.place)
        state.digest = bytes(state.digest)
    return {state.place: state for state in states}


def _apply(state: EntryState, prepared: Prepared) -> None:
    """Update the state from a draft, within an operator's earlier decision."""
    state.authority = AUTHORITIES.index(prepared.draft.authority)
    state.trust = prepared.draft.trust.value
    state.is_probed = prepared.is_probed
    state.digest = prepared.digest
    state.card_digest = prepared.card_digest
    state.revision += 1
    state.standing, state.reason = prepared.standing.value, prepared.reason
    if state.decided in (REJECTED, HELD):
        state.standing, state.reason = state.decided, state.decided_reason
    is_let_through = state.decided == LISTED and state.card_digest == state.decided_card
    if is_let_through and state.standing == HELD and state.trust != Trust.FAILED.value:
        state.standing, state.reason = LISTED, ""


def _choose_listed(states: Iterable[EntryState]) -> None:
    """List one entry of each identifier: of the strongest authority, then the oldest.

    While an entry is held, only a verified entry replaces it, or an entry that the operator
    imported; an older entry without the pinned keys does not.
    """
    states = list(states)
    best: dict[str, EntryState] = {}
    held = {state.identifier for state in states if state.standing == HELD}
    able = [state for state in states if state.standing in (LISTED, SHADOWED)]
    for state in sorted(able, key=lambda s: (s.authority, s.created_at, s.key)):
        state.standing = SHADOWED
        is_fit = state.trust == Trust.VERIFIED.value or state.authority == IMPORTED
        if is_fit or state.identifier not in held:
            chosen = best.setdefault(state.identifier, state)
            state.standing = LISTED if chosen is state else SHADOWED


def _stand(
    session: Session, changed: Mapping[int, EntryState], standing: str, reason: str, now: int
) -> None:
    """Set the standing of entries, and list others instead. The caller holds the lock."""
    if not changed:
        return
    [(change,)] = session.rows("counter", {"name": "change"})
    identifiers = sorted({state.identifier for state in changed.values()})
    states = list(
        _states(
            session.rows("states_of_identifiers", {"identifiers": session.listed(identifiers)})
        ).values()
    )
    before = {state.key: state.standing for state in states}
    for state in states:
        if state.key in changed:
            state.standing, state.reason = standing, reason
            if standing in (WITHDRAWN, PENDING):
                state.digest = b""  # so that the next put is a change, even if the draft is equal
    _choose_listed(states)
    moved = [s for s in states if s.standing != before[s.key] or s.key in changed]
    change = _move(session, [s for s in moved if s.standing != LISTED], change, now)
    change = _move(session, [s for s in moved if s.standing == LISTED], change, now)
    session.change("set_counter", {"name": "change", "value": change})


def _move(session: Session, states: Sequence[EntryState], change: int, now: int) -> int:
    """Store standings; return the number of the last change."""
    if states:
        rows = [
            {
                "key": state.key,
                "standing": state.standing,
                "reason": state.reason,
                "digest": state.digest,
                "change": change + count,
                "now": now,
            }
            for count, state in enumerate(states, 1)
        ]
        session.many("set_standings", rows)
        _schedule_probes(session, states, now)
    return change + len(states)


def _write(session: Session, puts: list[_Put], change: int, now: int) -> int:
    """Store the put entries; return the number of the last change."""
    if not puts:
        return change
    puts.sort(key=lambda each: each.standing == LISTED)
    _put_cards(session, puts, now)
    rows = []
    for count, each in enumerate(puts, 1):
        state = each.state
        rows.append(
            {
                **each.prepared.columns(),
                "key": state.key,
                "standing": state.standing,
                "reason": state.reason,
                "card_number": state.card_number,
                "revision": state.revision,
                "change": change + count,
                "now": now,
            }
        )
    session.many("put_entries", rows)
    session.many(
        "put_documents", [{"key": each.key, "document": each.prepared.document} for each in puts]
    )
    _schedule_probes(session, [each.state for each in puts], now)
    return change + len(puts)


def _put_cards(session: Session, puts: Sequence[_Put], now: int) -> None:
    """Store changed cards, with the difference from the previous version.

    Versions are visible to their former audience only: if the audience grows, the history starts
    anew.
    """
    known = [each.key for each in puts if not each.is_new]
    widened = _widened(session, puts)
    last = {}
    if known:
        for key, number, digest, card in session.rows(
            "last_cards", {"keys": session.listed(known)}
        ):
            last[key] = (number, digest, bytes(card))
    rows = []
    ends = []
    for each in puts:
        number, digest, card = last.get(each.key, (0, "", b""))
        is_widened = each.key in widened
        if is_widened:
            ends.append({"key": each.key, "until": number})
        if each.card is None:
            each.state.card_number = 0
            continue
        if number and digest == each.prepared.card_digest and not is_widened:
            each.state.card_number = number
            continue
        changes = card_difference(card, each.card) if number and not is_widened else ()
        each.state.card_number = number + 1
        if number + 1 > CARDS_KEPT and not is_widened:
            ends.append({"key": each.key, "until": number + 1 - CARDS_KEPT})
        rows.append(
            {
                "key": each.key,
                "number": number + 1,
                "digest": each.prepared.card_digest,
                "version": each.prepared.draft.version,
                "now": now,
                "difference": msgspec.json.encode(changes),
                "card": each.card,
            }
        )
    if rows:
        session.many("put_cards", rows)
    if ends:
        session.many("prune_cards", ends)


def _widened(session: Session, puts: Sequence[_Put]) -> set[int]:
    """Return the entries whose audience grows. Call it before the documents are stored."""
    known = [each.key for each in puts if not each.is_new]
    rows = session.rows("documents_of", {"keys": session.listed(known)}) if known else ()
    before = {key: _AUDIENCE.decode(document).audience for key, document in rows}
    return {
        each.key
        for each in puts
        if before.get(each.key)
        and not (
            each.prepared.draft.audience and {*before[each.key]} >= {*each.prepared.draft.audience}
        )
    }


def _schedule_probes(session: Session, states: Sequence[EntryState], now: int) -> None:
    """Schedule probes for listed A2A entries, and for no others."""
    probed = [s.key for s in states if s.is_probed and s.standing == LISTED]
    others = [s.key for s in states if not (s.is_probed and s.standing == LISTED)]
    if probed:
        session.many("add_probes", [{"key": key, "now": now} for key in probed])
    if others:
        session.many("remove_probes", [{"key": key} for key in others])
