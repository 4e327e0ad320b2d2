"""``parley store export`` and ``import``: a store as lines of JSON, in complete files."""

from __future__ import annotations

import asyncio
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
from parley.cli.store.acts import act, record_act, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.admin.transfer import (
    Counts,
    Imported,
    TransferError,
    checked,
    export_to,
    import_into,
    lines_in,
)

PROGRESS_INTERVAL = 5.0
"""Seconds between two progress notes of an import."""


def export(output: Output, admin: StoreAdmin, file: str, *, agent: str, tenant: str) -> None:
    """Write a store's contents to a new file, or to standard output.

    ``agent`` and ``tenant`` restrict the export.
    """
    require_current(admin, agent)
    refuse_stdout(output, file, "parley store export tasks.jsonl")
    with export_stream(file) as stream, admin.reading() as source:
        counts = export_to(source, stream.write, by=__version__, agent=agent, tenant=tenant)
    exported = _plain(counts)
    record_act(admin, act("store.exported", agent=agent, tenant=tenant, details=exported))
    if file == "-":
        output.note(f"exported {format_counts(counts)}")
        return
    output.report(
        {"store": admin.name, "file": file, "exported": exported},
        ("File", file),
        ("Exported", format_counts(counts)),
    )


def refuse_stdout(output: Output, file: str, instead: str) -> None:
    """Reject standard output as the target of an export if the export would be unusable. Raises
    ``UsageFailure``.
    """
    if file == "-" and output.is_json:
        raise UsageFailure("--output json would mix with an export on standard output; name a file")
    if file == "-" and sys.stdout.isatty():
        raise UsageFailure(
            "an export cannot go to a terminal: name a file, or pipe it", hint=instead
        )


@contextmanager
def export_stream(file: str) -> Iterator[IO[bytes]]:
    """Open a new file for an export, or standard output. Raises ``CommandFailure``."""
    if file != "-":
        with new_file(Path(file)) as stream:
            yield stream
        return
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"the export is incomplete ({error.strerror}); repeat it"
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that only its owner can read, and that appears only when it is complete and
    durable.

    It replaces no existing file, and follows no link.
    """
    exists = UsageFailure(f"{path} exists already; name a new file, or remove it")
    if os.path.lexists(path):
        raise exists
    try:
        descriptor, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # independent of the umask
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
        except OSError:  # some file systems have no links
            part.rename(path)
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{path} was not written ({error.strerror}); no partial file remains"
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
        done = asyncio.run(_import(admin, stream, _progress_reporter(output)))
    details = {"imported": _plain(done.added), "thereAlready": _plain(done.skipped)}
    record_act(admin, act("store.imported", details=details))
    fields = [("Store", admin.name), ("Imported", format_counts(done.added))]
    if any(_plain(done.skipped).values()):
        fields.append(("There already", format_counts(done.skipped)))
    output.report({"store": admin.name, **details}, *fields)


async def _import(
    admin: StoreAdmin, stream: IO[bytes], progress: Callable[[Imported], None]
) -> Imported:
    async with admin.opened() as store:
        return await import_into(store, lines_in(stream), progress)


@contextmanager
def _rewindable(file: str) -> Iterator[IO[bytes]]:
    """Open a file that is read twice; a pipe is copied to a temporary file."""
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
