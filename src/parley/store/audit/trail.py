"""The audit: an append-only, hash-chained trail of acts that no task's log has.

The hash of a line is the SHA-256 of its canonical JSON (RFC 8785) without ``hash``. ``previous`` is
the hash of the line before it. So a change, removal or reordering of lines invalidates all later
lines, and these are attested by anchors and copies elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import asdict, replace

GENESIS = "0" * 64
"""The previous hash of the first line."""

PRUNED = "audit.pruned"
"""The kind of a checkpoint: lines before it were removed by retention."""

PAGE = 500
"""The number of lines that are read at once."""

LINES_PER_PRUNE = 20_000
"""The maximum number of lines that a prune removes, so that other writers need not wait."""

MAX_TEXT = 512
"""The length limit of each text of an entry."""

MAX_DETAILS = 8192
"""The length limit of the details of an entry, as JSON."""


_JSON = msgspec.json.Encoder(order="deterministic")
_TEXTS = ("issuer", "actor", "client", "address", "agent", "tenant", "subject", "outcome")
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}")
_SAFE_INTEGER = 2**53 - 1

LAST = 2**63 - 1
"""The last number of a line, and the last time (ms), that a database can hold."""

MAX_PROBLEMS = 100
"""The maximum number of problems in a verification."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An act to record. It has no secrets and no contents of messages.

    ``at`` is in ms by the store's clock; 0 stands for the time of the append. ``actor`` is the
    actor's id, ``issuer`` the issuer of the id (``os`` for a user of an operating system),
    ``client`` the software. ``subject`` is the object of the act. ``id`` is unique: an append that
    is repeated because its answer was lost counts once.
    """

    kind: str
    at: int = 0
    issuer: str = ""
    actor: str = ""
    client: str = ""
    address: str = ""
    agent: str = ""
    tenant: str = ""
    subject: str = ""
    outcome: str = ""
    details: Mapping[str, Any] = {}
    id: str = msgspec.field(default_factory=lambda: uuid4().hex)


class AuditLine(AuditEntry, frozen=True, kw_only=True):
    """A recorded entry: its number, the hash of the line before it, and its own."""

    seq: int
    previous: str
    hash: str

    @property
    def anchor(self) -> str:
        """A value to keep elsewhere: it proves later that no line up to this one was changed."""
        return f"{self.seq}:{self.hash}"


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of lines: empty fields select all. Times are in ms, ``until`` is excluded.

    ``kind`` selects a kind and the kinds below it: ``key`` selects ``key.created``. ``actor`` is an
    id.
    """

    since: int | None = None
    until: int | None = None
    kind: str = ""
    actor: str = ""
    agent: str = ""
    task_id: str = ""

    @property
    def span(self) -> tuple[int, int]:
        """The first time (ms) that it selects, and the end of the span, which is excluded."""
        since = -LAST if self.since is None else self.since
        return since, LAST if self.until is None else self.until

    def selects(self, entry: AuditEntry) -> bool:
        """Return whether the filter selects an entry."""
        since, until = self.span
        return (
            since <= entry.at < until
            and (not self.kind or f"{entry.kind}.".startswith(f"{self.kind}."))
            and self.actor in ("", entry.actor)
            and self.agent in ("", entry.agent)
            and self.task_id in ("", entry.subject)
        )


class AuditPrune(msgspec.Struct, frozen=True, kw_only=True):
    """The lines to remove: all before the first that is not older than ``before`` (ms).

    ``by`` has the actor.
    """

    before: int
    by: AuditEntry


class Problem(msgspec.Struct, frozen=True):
    """A fault of a chain, and its line."""

    seq: int
    text: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result: the number of lines, the last line's anchor, and all faults."""

    lines: int
    first: int
    anchor: str
    problems: Sequence[Problem]

    @property
    def is_intact(self) -> bool:
        """True if there are no problems."""
        return not self.problems


class Anchor(msgspec.Struct, frozen=True):
    """The number and the hash of a line, noted elsewhere."""

    seq: int
    hash: str

    @classmethod
    def of(cls, text: str) -> Anchor:
        """Read ``SEQ:HASH``. Raises ``ValueError``."""
        match = re.fullmatch(r"(\d{1,18}):([0-9a-f]{64})", text.strip())
        if not match:
            raise ValueError(f"{text.strip()[:80]!r} is not an anchor such as 128:9f86d0...")
        return cls(int(match[1]), match[2])


def checked(entry: AuditEntry, now: int) -> AuditEntry:
    """Return an entry in a form that every store can keep: texts within limits, details plain
    JSON."""
    texts = {name: _text(getattr(entry, name)) for name in ("kind", "id", *_TEXTS)}
    details = _plain(entry.details, 0)
    if len(_JSON.encode(details)) > MAX_DETAILS:
        details = {"omitted": "the details were longer than an entry may be"}
    return AuditEntry(**texts, at=entry.at or now, details=details)


def lines_after(
    head: tuple[int, str] | None, entries: Iterable[AuditEntry], now: int
) -> list[AuditLine]:
    """Return entries as the lines after ``head``, the number and the hash of the last one."""
    seq, previous = head or (0, GENESIS)
    lines: list[AuditLine] = []
    for entry in entries:
        values = asdict(checked(entry, now))
        line = AuditLine(**values, seq=seq + 1, previous=previous, hash="")
        line = replace(line, hash=hash_of(line))
        lines.append(line)
        seq, previous = line.seq, line.hash
    return lines


def checkpoint(prune: AuditPrune, last: AuditLine, removed: int) -> AuditEntry:
    """Return the entry that accounts for lines that are removed, up to ``last``."""
    details = {"upTo": last.seq, "hash": last.hash, "removed": removed, "before": prune.before}
    values = {"id": f"{prune.by.id}:{last.seq}", "kind": PRUNED, "outcome": "done"}
    return replace(prune.by, details=details, **values)


def prune_values(prune: AuditPrune) -> tuple[int, int]:
    """Return the values of the query ``audit_prunable``: a time, and a number."""
    return prune.before, LINES_PER_PRUNE


def hash_of(line: AuditLine) -> str:
    """Return the hash that a line should have."""
    fields = asdict(line)
    del fields["hash"]
    return hashlib.sha256(canonical(fields)).hexdigest()


def text_of(entry: AuditEntry) -> str:
    """Return an entry or a line as JSON."""
    return canonical(asdict(entry)).decode()


def canonical(value: Any) -> bytes:
    """Return JSON in the form of RFC 8785, of values without floats and with ASCII names."""
    text = _JSON.encode(value).decode()
    # Only control characters are escaped by number, and RFC 8785 writes these in lower case.
    return _ESCAPED.sub(lambda match: match[0].lower(), text).encode()


def line_columns(line: AuditLine) -> dict[str, Any]:
    """Return a line as the columns of a table."""
    return asdict(line) | {"details": canonical(line.details).decode()}


COLUMNS = (
    *("seq", "id", "at", "kind", "issuer", "actor", "client", "address", "agent", "tenant"),
    *("subject", "outcome", "details", "previous", "hash"),
)


def line_of(row: Sequence[Any]) -> AuditLine:
    """Return the line in a row, even if the row was changed from outside."""
    values = dict(zip(COLUMNS, row, strict=True))
    try:
        details = msgspec.json.decode(values["details"])
    except (msgspec.DecodeError, TypeError):
        details = None
    if not isinstance(details, dict):
        details = {"unreadable": str(values["details"])}
    return AuditLine(**values | {"details": details})


def line_in(document: Any) -> AuditLine:
    """Return the line in a JSON object of an export. Raises ``ValueError``."""
    if not isinstance(document, dict) or set(document) != set(COLUMNS):
        raise ValueError("not a line of the audit")
    try:
        return msgspec.convert(document, AuditLine)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a line of the audit: {error}") from None


class Verifier:
    """Verifies lines in their order; ``anchors`` were noted earlier. Remembers no lines."""

    def __init__(self, anchors: Sequence[Anchor] = ()) -> None:
        self._anchors = list(anchors)
        self._problems: list[Problem] = []
        self._first: AuditLine | None = None
        self._last: AuditLine | None = None
        self._lines = 0
        self._is_accounted = False

    def add(self, line: AuditLine) -> None:
        """Verify the next line."""
        last = self._last
        if last is None:
            self._first = line
        elif line.seq > last.seq + 1:
            gap = f"line {last.seq + 1}"
            if line.seq > last.seq + 2:
                gap = f"lines {last.seq + 1} to {line.seq - 1}"
            self._problem(last.seq + 1, f"{gap} missing: removed after they were recorded")
        elif line.seq <= last.seq:
            self._problem(line.seq, "the line is out of order")
        elif line.previous != last.hash:
            self._problem(line.seq, f"does not follow line {last.seq}, as it now is")
        if not _is_hash(line):
            self._problem(line.seq, "was changed: its content does not give its hash")
        for anchor in self._anchors:
            if anchor.seq == line.seq and anchor.hash != line.hash:
                self._problem(line.seq, "is another line than the one of the anchor")
        first = self._first
        if line.kind == PRUNED and first is not None:
            upto, hash_ = line.details.get("upTo"), line.details.get("hash")
            if upto == first.seq - 1 and hash_ == first.previous:
                self._is_accounted = True
        self._last = line
        self._lines += 1

    def result(self) -> Verification:
        """Return the result for the lines so far."""
        first, last = self._first, self._last
        problems = list(self._problems)
        if first is not None and (first.seq, first.previous) != (1, GENESIS):
            if first.seq == 1:
                problems.append(Problem(1, "names a line before it, and is the first"))
            elif not self._is_accounted:
                gone = "line 1" if first.seq == 2 else f"lines 1 to {first.seq - 1}"
                problems.append(Problem(1, f"{gone} missing, and no prune accounts for it"))
        end = 0 if last is None else last.seq
        for anchor in self._anchors:
            if anchor.seq > end:
                problems.append(
                    Problem(end + 1, f"the end is missing: the anchor names line {anchor.seq}")
                )
            elif first is not None and anchor.seq < first.seq:
                if (anchor.seq, anchor.hash) == (first.seq - 1, first.previous):
                    continue  # the checkpoint names it
                text = f"the anchor's line {anchor.seq} was pruned; use a later anchor"
                problems.append(Problem(anchor.seq, text))
        problems.sort(key=lambda problem: problem.seq)
        return Verification(
            lines=self._lines,
            first=0 if first is None else first.seq,
            anchor="" if last is None else last.anchor,
            problems=problems[:MAX_PROBLEMS],
        )

    def _problem(self, seq: int, text: str) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(Problem(seq, text))


def verify(lines: Iterable[AuditLine], anchors: Sequence[Anchor] = ()) -> Verification:
    """Verify a whole chain, in the order of its numbers."""
    verifier = Verifier(anchors)
    for line in lines:
        verifier.add(line)
    return verifier.result()


def _is_hash(line: AuditLine) -> bool:
    try:
        return line.hash == hash_of(line)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def _text(value: str) -> str:
    text = value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _plain(value: Any, depth: int) -> Any:
    """Return a value as JSON with a single form: floats become texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _SAFE_INTEGER else str(value)
    if isinstance(value, str):
        return _text(value)
    if depth < 8 and isinstance(value, Mapping):
        return {_name(str(name)): _plain(each, depth + 1) for name, each in value.items()}
    if depth < 8 and isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_plain(each, depth + 1) for each in items]
    return _text(str(value))


def _name(text: str) -> str:
    return _text(text).encode("ascii", "backslashreplace").decode()
