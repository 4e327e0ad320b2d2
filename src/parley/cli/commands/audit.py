"""``parley audit``: shows, exports, verifies and prunes the audit log of a store."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace
from typer.core import TyperGroup

from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output, print_line
from parley.cli.output.text import visible_json
from parley.cli.settings.options import LOCAL_OPTIONS, Argument, CommandOption
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import EXITS, PASSWORDS, InStore, StoreCommands, act, require_current
from parley.cli.store.transfer import new_file, refuse_stdout
from parley.model.option import parse_span
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

EXAMPLES = """\b
Examples:
  parley audit                              the last 100 entries
  parley audit --since 7d --actor ada       what ada did within a week
  parley audit --task 01a1fba0193c72ae      who asked, answered and cancelled
  parley audit --kind auth --follow         rejected credentials, as they happen
  parley audit export audit.jsonl           all of it, as lines of JSON
  parley audit verify --anchor 128:9f86...  check that nothing was changed"""

DEFAULT = "list"


class AuditGroup(TyperGroup):
    """Runs ``list`` if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command before its options."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


EPILOG = f"{EXITS}\n\n{PASSWORDS}"
_AGO = ": 2026-11-23T14:00:00Z, or how long ago, such as 7d."

POLL_SECONDS = 1.0

OVERLAP = 60_000
"""The number of ms a fact may become visible after facts with a later time."""

LONGEST_SPAN_MS = 10_000 * 366 * 86_400_000
"""The longest span (ms)."""

MAX_DETAIL = 160
"""The length limit of an entry's details in a table."""

COMMANDS = StoreCommands("audit", "Show, export, verify and prune the audit log.", AuditGroup)


class Selection(InStore, frozen=True):
    """The selected entries of the audit log."""

    since: Annotated[str, CommandOption(f"Entries from this time on{_AGO}", "TIME")] = ""
    until: Annotated[str, CommandOption(f"Entries before this time{_AGO}", "TIME")] = ""
    actor: Annotated[str, CommandOption("Only actions of this caller or user.", "ID")] = ""
    task: Annotated[str, CommandOption("Only entries about this task.", "ID")] = ""
    agent: Annotated[str, CommandOption("Only entries about this agent, by its key.", "KEY")] = ""
    kind: Annotated[
        str, CommandOption("Only this kind, such as task, key or auth.failed.", "KIND")
    ] = ""
    content: Annotated[bool, CommandOption("Include the texts of messages.")] = False

    def filter(self, now: int) -> AuditFilter:
        """Return the selection as a filter. Raises ``UsageFailure``."""
        return AuditFilter(
            since=_moment("--since", self.since, now),
            until=_moment("--until", self.until, now),
            kind=self.kind,
            actor=self.actor,
            agent=self.agent,
            task_id=self.task,
        )


class AuditListing(Selection, frozen=True):
    """The options of ``parley audit list``."""

    limit: Annotated[int, CommandOption("The last N entries; 0 for all.", "N", least=0)] = 100
    lines: Annotated[bool, CommandOption("Print a JSON object for each entry.", flag="--json")] = (
        False
    )
    follow: Annotated[bool, CommandOption("Continue with new entries as they are added.")] = False


@COMMANDS.work(DEFAULT, EXAMPLES)
def show(output: Output, admin: StoreAdmin, options: AuditListing) -> None:
    """Show the audit log, the oldest entry first; parley audit runs this by default.

    Entries about tasks (requests, answers, cancellations, attempts, decisions of policies) come
    from their logs; rejected credentials, actions of operators and starts of servers from the audit
    log of the store. Works while the store is in use, and changes nothing.
    """
    require_current(admin)
    begun, limit = admin.now(), options.limit
    as_lines = options.lines or output.is_json
    which = options.filter(begun)
    known: dict[str, int] = {}
    with admin.audit() as reading:
        found: Iterable[AuditEntry] = _noting(
            reading.entries(which, content=options.content), known, begun - OVERLAP
        )
        left_out = 0
        if limit:
            last: deque[AuditEntry] = deque(maxlen=limit)
            for entry in found:
                left_out += len(last) == limit
                last.append(entry)
            found = last
        end = reading.last()
        if not as_lines:
            print_line(_HEADER)
        for entry in found:
            _print(entry, as_lines)
    if left_out:
        output.note(f"{_count(left_out)} before these are left out: --limit 0 shows all")
    seq = 0 if end is None else end.seq
    while options.follow and (which.until is None or admin.now() < which.until + OVERLAP):
        time.sleep(POLL_SECONDS)
        horizon = max([begun, *known.values()]) - OVERLAP
        recent = replace(which, since=max(horizon, which.since or horizon))
        with admin.audit() as reading:
            end = reading.last()
            added: list[AuditEntry] = [
                *reading.lines(replace(which, since=None), after=seq),
                *reading.facts(recent, content=options.content),
            ]
        seq = seq if end is None else max(seq, end.seq)
        for entry in sorted(added, key=lambda entry: entry.at):
            if entry.id not in known:
                known[entry.id] = entry.at
                _print(entry, as_lines)
        known = {id: at for id, at in known.items() if at >= horizon}


def _noting(
    entries: Iterable[AuditEntry], known: dict[str, int], since: int
) -> Iterator[AuditEntry]:
    """Yield entries, and record the ids and times of the entries from ``since`` on."""
    for entry in entries:
        if entry.at >= since:
            known[entry.id] = entry.at
        yield entry


class AuditExport(Selection, frozen=True):
    """The options of ``parley audit export``."""

    target: Annotated[str, Argument("A new file, or - for standard output.", "TARGET")] = "-"


@COMMANDS.work("export")
def export(output: Output, admin: StoreAdmin, options: AuditExport) -> None:
    """Write the audit log as lines of JSON.

    Lines of the audit log have a number and a hash, and parley audit verify FILE checks them;
    entries about tasks have none. Shows the anchor of the last line: keep it elsewhere.
    """
    require_current(admin)
    which, target = options.filter(admin.now()), options.target
    if "://" in target:
        raise UsageFailure(
            "an export is written to a file or to standard output, not to an address; the logger "
            "parley.audit.lines of a server emits each line as it is appended"
        )
    refuse_stdout(output, target, "parley audit export audit.jsonl")
    count = 0
    with admin.audit() as reading:
        last = reading.last()
        entries = reading.entries(which, content=options.content)
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
        output.note(f"exported {_count(count)}; the anchor of the audit log is {anchor or 'none'}")
        return
    output.report(
        {"store": admin.name, "target": target, "entries": count, "anchor": anchor},
        ("Target", target),
        ("Exported", _count(count)),
        ("Anchor", anchor or "none"),
    )


class AuditVerification(InStore, frozen=True):
    """The options of ``parley audit verify``."""

    file: Annotated[str, Argument("An exported file, instead of the store.", "[FILE]")] = ""
    anchor: Annotated[
        tuple[str, ...],
        CommandOption("SEQ:HASH from earlier, or a file that ends with it; repeatable.", "ANCHOR"),
    ] = ()


@COMMANDS.add("verify", *LOCAL_OPTIONS, epilog=EPILOG)
def verify(settings: CommandSettings, output: Output, options: AuditVerification) -> int:
    """Check that no line of the audit log was changed, removed or moved.

    Without an anchor, removed lines at the end and a complete rewrite go undetected: keep the
    anchor that this command shows, away from the store. Exits with 1 if a line is wrong, and names
    it.
    """
    if options.file:
        return _verify_file(output, options.file, options.anchor)

    def verified(admin: StoreAdmin) -> int:
        require_current(admin)
        noted = [_anchor(each) for each in options.anchor]
        with admin.audit() as reading:
            result = verify_lines(reading.chain(), noted)
        return _report(output, admin.name, result)

    return options.admin(verified)


def _verify_file(output: Output, file: str, anchors: Sequence[str]) -> int:
    """Verify the audit log in an export; return the exit status."""
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
    for line in sorted(lines, key=lambda line: line.seq):  # the file is ordered by time
        verifier.add(line)
    return _report(output, file, verifier.result())


class Prune(InStore, frozen=True):
    """The options of ``parley audit prune``."""

    before: Annotated[str, CommandOption(f"Remove older lines{_AGO}", "TIME")] = ""


@COMMANDS.work("prune")
def prune(output: Output, admin: StoreAdmin, options: Prune) -> None:
    """Remove old lines of the audit log; a checkpoint accounts for them in the chain.

    Tasks and their logs stay: parley store prune removes them. With audit_retention= a server
    prunes the audit log itself.
    """
    before = options.before
    if not before:
        raise UsageFailure("give an age with --before, such as --before 400d")
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
    output.report(
        {"store": admin.name, "removed": removed, "anchor": anchor},
        ("Store", admin.name),
        ("Removed", f"{removed} line{'' if removed == 1 else 's'}"),
        ("Anchor", anchor),
    )


def _report(output: Output, name: str, result: Verification) -> int:
    document = {
        "store": name,
        "intact": result.is_intact,
        "lines": result.lines,
        "first": result.first,
        "anchor": result.anchor,
        "problems": [{"line": each.seq, "text": each.text} for each in result.problems],
    }
    output.report(
        document,
        ("Store", name),
        ("Lines", result.lines),
        *[("Problem", f"line {each.seq}: {each.text}") for each in result.problems],
        ("Intact", "yes" if result.is_intact else "no"),
        ("Anchor", result.anchor or "none"),
    )
    return 0 if result.is_intact else 1


def _anchor(text: str) -> Anchor:
    """Return the given anchor, or the anchor at the end of a file."""
    try:
        return Anchor.of(text)
    except ValueError:
        path = Path(text)
        if not path.is_file():
            raise UsageFailure(
                f"--anchor: {text[:100]!r} is neither an anchor such as 128:9f86d0... nor a file "
                "with an anchor"
            ) from None
    lines = [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    with wrong_usage(f"--anchor: {text}: "):
        if last.startswith("{"):  # an export: use its line with the highest number
            documents = [msgspec.json.decode(line) for line in lines]
            lines_here = [line_in(each) for each in documents if "hash" in each]
            found = max(lines_here, key=lambda line: line.seq)
            return Anchor.of(found.anchor)
        return Anchor.of(last.removeprefix("Anchor:"))


def _moment(option: str, text: str, now: int) -> int | None:
    """Return a time in ms: a date, a date with a time, or an age."""
    if not text:
        return None
    try:
        ago = parse_span(text) * 1000
        if ago > LONGEST_SPAN_MS:
            raise UsageFailure(f"{option}: {text[:40]!r} is longer than any retention")
        return now - round(ago)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageFailure(
            f"{option}: {text!r} is not a time such as 2026-11-23T14:00:00Z or 7d"
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
    """Return an entry as a line of JSON; a line of the audit log in the form that its
    hash covers.
    """
    return visible_json(text_of(entry))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _flat(text: str) -> str:
    return text.replace("\n", "\\n").replace("\t", "\\t")


def _time(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


def _count(n: int) -> str:
    return f"{n} entr{'y' if n == 1 else 'ies'}"
