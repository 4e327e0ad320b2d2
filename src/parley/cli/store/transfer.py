"""``parley store export`` and ``import``: an export as a file or a stream."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from parley import __version__
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.store.acts import act, record_act
from parley.cli.store.checks import require_agent, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.admin.export_format import Counts, ExportSource, TransferError, export_to
from parley.store.admin.importer import Imported, checked, import_into, lines_in

PROGRESS_INTERVAL = 5.0
"""Seconds between two progress notes of an import."""


def export(
    output: Output, admin: StoreAdmin, file: str, *, agent: str = "", tenant: str = ""
) -> None:
    """Write a store's contents to a new file, or to standard output.

    ``agent`` and ``tenant`` restrict the export.
    """
    require_current(admin)
    if agent:
        require_agent(admin, agent)

    def write(source: ExportSource, put: Callable[[bytes], object]) -> Counts:
        return export_to(source, put, by=__version__, agent=agent, tenant=tenant)

    if file == "-":
        if output.is_json:
            raise UsageFailure(
                "--output json is about the export, which is on standard output itself; name a file"
            )
        if sys.stdout.isatty():
            raise UsageFailure(
                "the export is not for a terminal: name a file, or pass it on",
                hint="parley store export tasks.jsonl",
            )
        try:
            with admin.reading() as source:
                counts = write(source, sys.stdout.buffer.write)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailure(
                "PARLEY_ERR_FILE", f"the export is not whole ({error.strerror}); do it again"
            ) from error
        _record_export(admin, counts, agent, tenant)
        output.note(f"exported {format_counts(counts)}")
        return
    with new_file(Path(file)) as stream, admin.reading() as source:
        counts = write(source, stream.write)
    _record_export(admin, counts, agent, tenant)
    if output.is_json:
        output.document({"store": admin.name, "file": file, "exported": _plain(counts)})
        return
    output.text.field("File", file)
    output.text.field("Exported", format_counts(counts))


def _record_export(admin: StoreAdmin, counts: Counts, agent: str, tenant: str) -> None:
    record_act(admin, act("store.exported", agent=agent, tenant=tenant, details=_plain(counts)))


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that only its owner can read, and that appears only when complete and durable.

    Replaces no other file, and writes through no link.
    """
    exists = UsageFailure(f"{path} is there already; name a new file, or remove it")
    if os.path.lexists(path):
        raise exists
    try:
        descriptor, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # whatever the umask is
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{path} cannot be written ({error.strerror})"
        ) from error
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            raise exists from None
        except OSError:  # not every file system has links
            part.rename(path)
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{path} was not written ({error.strerror}); nothing is left of it"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def import_from(output: Output, admin: StoreAdmin, file: str) -> None:
    """Add an export to a store, after checking all of it."""
    with _rewindable(file) as stream:
        try:
            deque(checked(lines_in(stream)), maxlen=0)
        except TransferError as error:
            name = "standard input" if file == "-" else file
            raise CommandFailure(
                "PARLEY_ERR_FILE", f"{name}: {error}", hint="nothing was imported"
            ) from error
        stream.seek(0)
        with admin.writing() as target:
            done = import_into(target, lines_in(stream), _progress_reporter(output))
    details = {"imported": _plain(done.added), "thereAlready": _plain(done.skipped)}
    record_act(admin, act("store.imported", details=details))
    if output.is_json:
        document = {"imported": _plain(done.added), "thereAlready": _plain(done.skipped)}
        output.document({"store": admin.name, **document})
        return
    output.text.field("Store", admin.name)
    output.text.field("Imported", format_counts(done.added))
    if any(_plain(done.skipped).values()):
        output.text.field("There already", format_counts(done.skipped))


@contextmanager
def _rewindable(file: str) -> Iterator[IO[bytes]]:
    """Open a file to be read twice; a pipe is copied to a temporary file."""
    name = "standard input" if file == "-" else file
    try:
        with open(file, "rb") if file != "-" else tempfile.TemporaryFile() as stream:
            if file == "-":
                shutil.copyfileobj(sys.stdin.buffer, stream)
                stream.seek(0)
            elif not stream.seekable():
                raise UsageFailure(f"{file} cannot be read twice; pass it on standard input, as -")
            yield stream
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{name} cannot be read ({error.strerror})"
        ) from error


def _progress_reporter(output: Output) -> Callable[[Imported], None]:
    last = time.monotonic()

    def report(done: Imported) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_INTERVAL:
            last = time.monotonic()
            output.note(f"imported {format_counts(done.added)} so far")

    return report


def format_counts(counts: Counts) -> str:
    """Return counts in words."""
    words = [f"{n} {name[:-1] if n == 1 else name}" for name, n in _plain(counts).items() if n]
    return ", ".join(words) or "nothing"


def _plain(counts: Counts) -> dict[str, Any]:
    return msgspec.structs.asdict(counts)
