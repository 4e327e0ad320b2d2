"""What the commands of ``parley audit`` do."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output, print_line
from parley.cli.output.text import parse_span, visible_json
from parley.cli.store.acts import act, require_current
from parley.cli.store.maintenance import new_file
from parley.store.admin.admin import StoreAdmin
from parley.store.audit.trail import (
    LINES_PER_PRUNE,
    Anchor,
    AuditEntry,
    AuditFilter,
    AuditLine,
    AuditPrune,
    Verification,
    Verifier,
    line_in,
    text_of,
)
from parley.store.audit.trail import verify as verify_lines

POLL_SECONDS = 1.0

OVERLAP = 60_000
"""Facts may become visible this many ms after others with a later time."""

LONGEST_SPAN_MS = 10_000 * 366 * 86_400_000
"""The longest span (ms)."""

MAX_DETAIL = 160
"""How long the details of an entry are in a table."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to show, as it is given on the command line."""

    since: str = ""
    until: str = ""
    actor: str = ""
    task: str = ""
    agent: str = ""
    kind: str = ""

    def filter(self, now: int) -> AuditFilter:
        """Return it as a filter. Raises ``UsageFailure``."""
        return AuditFilter(
            since=_moment("--since", self.since, now),
            until=_moment("--until", self.until, now),
            kind=self.kind,
            actor=self.actor,
            agent=self.agent,
            task_id=self.task,
        )


def show(
    output: Output,
    admin: StoreAdmin,
    selection: Selection,
    *,
    limit: int,
    lines: bool,
    content: bool,
    follow: bool,
) -> None:
    """Print entries as a table, or as lines of JSON."""
    require_current(admin)
    begun = admin.now()
    which = selection.filter(begun)
    known: dict[str, int] = {}
    with admin.audit() as reading:
        found: Iterable[AuditEntry] = _noting(
            reading.entries(which, content=content), known, begun - OVERLAP
        )
        left_out = 0
        if limit:
            last: deque[AuditEntry] = deque(maxlen=limit)
            for entry in found:
                left_out += len(last) == limit
                last.append(entry)
            found = last
        end = reading.last()
        if not lines:
            print_line(_HEADER)
        for entry in found:
            _print(entry, lines)
    if left_out:
        output.note(f"{_count(left_out)} before these left out: --limit 0 shows all")
    if follow:
        seq = 0 if end is None else end.seq
        _follow(admin, which, known, seq, begun=begun, lines=lines, content=content)


def _noting(
    entries: Iterable[AuditEntry], known: dict[str, int], since: int
) -> Iterator[AuditEntry]:
    """Yield entries, and note the ids and times of those that are not older than ``since``."""
    for entry in entries:
        if entry.at >= since:
            known[entry.id] = entry.at
        yield entry


def _follow(
    admin: StoreAdmin,
    which: AuditFilter,
    known: dict[str, int],
    seq: int,
    *,
    begun: int,
    lines: bool,
    content: bool,
) -> None:
    """Print what is added, until interrupted or ``until`` has passed.

    ``known`` has the ids and times of what was there when it was ``begun``, or a little before.
    """
    while which.until is None or admin.now() < which.until + OVERLAP:
        time.sleep(POLL_SECONDS)
        horizon = max([begun, *known.values()]) - OVERLAP
        recent = replace(which, since=max(horizon, which.since or horizon))
        with admin.audit() as reading:
            end = reading.last()
            added: list[AuditEntry] = [
                *reading.lines(replace(which, since=None), after=seq),
                *reading.facts(recent, content=content),
            ]
        seq = seq if end is None else max(seq, end.seq)
        for entry in sorted(added, key=lambda entry: entry.at):
            if entry.id not in known:
                known[entry.id] = entry.at
                _print(entry, lines)
        known = {id: at for id, at in known.items() if at >= horizon}


def export(
    output: Output, admin: StoreAdmin, target: str, selection: Selection, *, content: bool
) -> None:
    """Write entries to a file or to standard output."""
    require_current(admin)
    which = selection.filter(admin.now())
    if "://" in target:
        raise UsageFailure(
            "an export goes to a file or to standard output, not to an address; the logger "
            "parley.audit.lines of a server has each line as it is appended"
        )
    if target == "-" and output.is_json:
        raise UsageFailure(
            "--output json is about the export, which is on standard output itself; name a file"
        )
    if target == "-" and sys.stdout.isatty():
        raise UsageFailure(
            "the export is not for a terminal: name a file, or pass it on",
            hint="parley audit export audit.jsonl",
        )
    count = 0
    with admin.audit() as reading:
        last = reading.last()
        entries = reading.entries(which, content=content)
        if target == "-":
            for count, entry in enumerate(entries, 1):  # noqa: B007
                sys.stdout.write(_line(entry) + "\n")
            sys.stdout.flush()
        else:
            with new_file(Path(target)) as stream:
                for count, entry in enumerate(entries, 1):  # noqa: B007
                    stream.write(_line(entry).encode() + b"\n")
    anchor = last.anchor if last is not None else ""
    if target == "-":
        output.note(f"exported {_count(count)}; the anchor of the audit is {anchor or 'none'}")
    elif output.is_json:
        document = {"store": admin.name, "target": target, "entries": count, "anchor": anchor}
        output.document(document)
    else:
        output.text.field("Target", target)
        output.text.field("Exported", _count(count))
        output.text.field("Anchor", anchor or "none")


def verify(output: Output, admin: StoreAdmin, anchors: Sequence[str]) -> int:
    """Verify the audit of a store; return the exit status."""
    require_current(admin)
    noted = [_anchor(each) for each in anchors]
    with admin.audit() as reading:
        result = verify_lines(reading.chain(), noted)
    return _report(output, admin.name, result)


def verify_file(output: Output, file: str, anchors: Sequence[str]) -> int:
    """Verify the lines of the audit in an export; return the exit status."""
    verifier = Verifier([_anchor(each) for each in anchors])
    lines: list[AuditLine] = []
    try:
        with open(file, "rb") as stream:
            for number, text in enumerate(stream, 1):
                try:
                    document = msgspec.json.decode(text)
                    if isinstance(document, dict) and "hash" in document:
                        lines.append(line_in(document))
                except (msgspec.DecodeError, ValueError) as error:
                    raise CommandFailure(
                        "PARLEY_ERR_FILE", f"{file}, line {number}: {error}"
                    ) from None
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{file} cannot be read ({error.strerror})"
        ) from error
    for line in sorted(lines, key=lambda line: line.seq):  # the file is in the order of time
        verifier.add(line)
    return _report(output, file, verifier.result())


def prune(output: Output, admin: StoreAdmin, before: str) -> None:
    """Remove old lines, and report how many."""
    if not before:
        raise UsageFailure("say what is old with --before, such as --before 400d")
    require_current(admin)
    until = _moment("--before", before, admin.now())
    assert until is not None
    given = AuditPrune(before=until, by=act(""))
    removed = count = admin.prune_audit(given)
    while count == LINES_PER_PRUNE:
        removed += (count := admin.prune_audit(given))
    with admin.audit() as reading:
        last = reading.last()
    anchor = last.anchor if last is not None else "none"
    if output.is_json:
        output.document({"store": admin.name, "removed": removed, "anchor": anchor})
        return
    output.text.field("Store", admin.name)
    output.text.field("Removed", f"{removed} line{'' if removed == 1 else 's'}")
    output.text.field("Anchor", anchor)


def _report(output: Output, name: str, result: Verification) -> int:
    if output.is_json:
        document = {
            "store": name,
            "intact": result.is_intact,
            "lines": result.lines,
            "first": result.first,
            "anchor": result.anchor,
            "problems": [{"line": each.seq, "text": each.text} for each in result.problems],
        }
        output.document(document)
    else:
        output.text.field("Store", name)
        output.text.field("Lines", result.lines)
        for problem in result.problems:
            output.text.field("Problem", f"line {problem.seq}: {problem.text}")
        output.text.field("Intact", "yes" if result.is_intact else "no")
        output.text.field("Anchor", result.anchor or "none")
    return 0 if result.is_intact else 1


def _anchor(text: str) -> Anchor:
    """Return an anchor as it is given, or that at the end of a file."""
    try:
        return Anchor.of(text)
    except ValueError:
        path = Path(text)
        if not path.is_file():
            raise UsageFailure(
                f"--anchor: {text[:100]!r} is no anchor such as 128:9f86d0..., and no file with one"
            ) from None
    lines = [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    try:
        if last.startswith("{"):  # an export: its last line is that with the highest number
            documents = [msgspec.json.decode(line) for line in lines]
            found = max([line_in(each) for each in documents if "hash" in each], key=_number)
            return Anchor.of(found.anchor)
        return Anchor.of(last.removeprefix("Anchor:"))
    except ValueError as error:
        raise UsageFailure(f"--anchor: {text}: {error}") from None


def _moment(option: str, text: str, now: int) -> int | None:
    """Return a time in ms: a date, a date with a time, or how long ago."""
    if not text:
        return None
    try:
        ago = parse_span(text) * 1000
        if ago > LONGEST_SPAN_MS:
            raise UsageFailure(f"{option}: {text[:40]!r} is longer than any store keeps something")
        return now - round(ago)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageFailure(
            f"{option}: {text!r} is no time such as 2026-11-23T14:00:00Z or 7d"
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


_HEADER = f"{'TIME':<24}  {'KIND':<22}  {'WHO':<24}  {'ABOUT':<34}  DETAILS"


def _print(entry: AuditEntry, lines: bool) -> None:
    print_line(_line(entry) if lines else _row(entry))


def _row(entry: AuditEntry) -> str:
    who = entry.actor or entry.address
    if entry.client and entry.client == entry.actor:
        who = f"application {who}"
    if entry.issuer and entry.issuer not in ("os", "parley"):
        who = f"{who} ({entry.issuer})"
    about = entry.subject or entry.agent
    known = entry.details.items()
    details = [f"{name}={_plain(value)}" for name, value in known if name != "settings"]
    words = [entry.outcome, *details] if entry.outcome else details
    columns = (_time(entry.at), entry.kind, who, about)
    widths = (24, 22, 24, 34)
    padded = [_flat(text).ljust(width) for text, width in zip(columns, widths, strict=True)]
    rest = _flat(" ".join(words))
    return "  ".join([*padded, rest if len(rest) <= MAX_DETAIL else f"{rest[:MAX_DETAIL]}…"])


def _line(entry: AuditEntry) -> str:
    """Return an entry as a line of JSON; of a line of the audit, it is what its hash is of."""
    return visible_json(text_of(entry))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _flat(text: str) -> str:
    return text.replace("\n", "\\n").replace("\t", "\\t")


def _time(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


def _number(line: AuditLine) -> int:
    return line.seq


def _count(n: int) -> str:
    return f"{n} entr{'y' if n == 1 else 'ies'}"
