"""``parley keys generate`` and ``show``: files of a server's signing keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output
from parley.cli.settings.options import LOCAL_OPTIONS, Argument, CommandOption
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import EXITS, Record, Recorded, StoreCommands, with_record
from parley.model.option import parse_span
from parley.security.signing.keys import (
    ALGORITHMS,
    MAX_BYTES,
    SigningKey,
    SigningKeysInvalid,
    WriteUnderWay,
    new_key_set,
    read_key_set,
    read_private,
    replacing,
    rotated,
    write_key_set,
)

STDOUT = "-"
CACHED_SECONDS = 300
"""The time for which verifiers may cache the keys that a server publishes."""

SIGNING_EXAMPLES = """\b
Examples:
  parley keys generate signing-keys.json
  parley keys generate signing-keys.json --alg ES256 --alg EdDSA
  parley keys rotate signing-keys.json
  parley serve agent.py --signing-keys signing-keys.json --url https://agents.example.com"""

TWO_KINDS = """\b
Two kinds of keys:
  API keys     authenticate callers: create, list, revoke, rotate ID.
               Their hashes are in the store of a server.
  signing keys sign the cards and webhooks of a server:
               generate, show, rotate FILE. They are in a private file."""

COMMANDS = StoreCommands("keys", "Manage API keys of callers, and signing keys of a server.")


class NewKeys(Recorded, frozen=True):
    """The options of ``parley keys generate``."""

    file: Annotated[
        str, Argument("The file to create; - writes the keys to standard output.", "FILE")
    ] = "signing-keys.json"
    alg: Annotated[
        tuple[str, ...],
        CommandOption(
            "ES256, RS256 or EdDSA (Ed25519); repeatable: cards then have a signature by "
            "each, webhooks a signature by the first.",
            "ALG",
            default="ES256",
        ),
    ] = ()


@COMMANDS.add("generate", *LOCAL_OPTIONS, epilog=f"{SIGNING_EXAMPLES}\n\n{TWO_KINDS}\n\n{EXITS}")
def generate(settings: CommandSettings, output: Output, options: NewKeys) -> None:
    """Create a file of signing keys, with which a server signs cards and webhooks.

    For each algorithm it has a current key and a next key. Only its owner can read it; all replicas
    of a server need the same file. For API keys of callers use parley keys create.
    """
    with_record(options.store, lambda record: _generate(output, options, record))


def _generate(output: Output, options: NewKeys, record: Record) -> None:
    """Create a file with new keys, record it, and report their ids."""
    now = time.time()
    try:
        document = new_key_set(options.alg, now)
    except ValueError as error:
        raise UsageFailure(
            f"--alg: {error}", hint=f"--alg {ALGORITHMS[0]} is the default"
        ) from None
    text, path = write_key_set(document), Path(options.file)
    keys = read_key_set(text, "the new keys")

    def recorded() -> None:
        record("signing_key.generated", keys[0].kid, {"keys": [key.kid for key in keys]})

    if options.file == STDOUT:
        recorded()
        output.json(text)  # for PARLEY_SIGNING_KEYS, or a vault
        output.warn("these are private keys: anyone who has seen them can sign")
        return
    try:
        with replacing(path, creates=True) as write:
            write(text)
    except FileExistsError:
        raise CommandFailure(
            "PARLEY_ERR_KEY",
            f"{path} exists, and is not replaced because its keys may be in use",
            hint=f"parley keys rotate {path} creates new keys in it",
        ) from None
    except (OSError, WriteUnderWay) as error:
        raise _unwritable(path, error) from None
    recorded()
    _report(output, path, keys, now)
    if not output.is_json:
        output.text.field("Note", "private: share this file with the replicas only")
        output.text.field(
            "Next", f"parley serve agent.py --signing-keys {path} --url https://agents.example.com"
        )


class KeyFile(msgspec.Struct, frozen=True):
    """The options of ``parley keys show``."""

    file: Annotated[str, Argument("The file.", "FILE")] = "signing-keys.json"


@COMMANDS.add("show", *LOCAL_OPTIONS, epilog=f"{TWO_KINDS}\n\n{EXITS}")
def show(settings: CommandSettings, output: Output, options: KeyFile) -> None:
    """Show the ids and states of the signing keys in a file, without their private halves."""
    path = Path(options.file)
    try:
        keys = read_key_set(_read(path), f"the key file {path}")
    except SigningKeysInvalid as error:
        raise CommandFailure("PARLEY_ERR_KEY", str(error)) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    _report(output, path, keys, time.time())


def rotate_file(output: Output, file: str, overlap: str, record: Record) -> None:
    """Activate the next keys of a file, record it, and report the changes."""
    now, path = time.time(), Path(file)
    with wrong_usage("--overlap: "):
        seconds = parse_span(overlap)
    try:
        with replacing(path) as write:
            text = _read(path)
            done = rotated(text, now, seconds, f"the key file {path}")
            made = write_key_set(done.document)
            write(made)
    except SigningKeysInvalid as error:
        raise CommandFailure("PARLEY_ERR_KEY", str(error)) from None
    except (OSError, WriteUnderWay) as error:
        raise _unwritable(path, error) from None
    if done.unpublished:
        output.warn(
            f"{', '.join(done.unpublished)} signs but was not published before, because the file "
            "had no next key: verifiers with cached key sets reject it until they fetch them again"
        )
    elif now - done.published_at < CACHED_SECONDS:
        output.warn(
            f"the new key was created {now - done.published_at:.0f} s ago, and verifiers may "
            "cache the "
            f"earlier keys for {CACHED_SECONDS} s: give the file to the server early enough"
        )
    changed = {"signs": done.signs, "ended": done.ended, "removed": done.removed}
    record("signing_key.rotated", done.signs[0], changed)
    _report(output, path, read_key_set(made, str(path)), now)


def _read(path: Path) -> bytes:
    try:
        return read_private(path, limit=MAX_BYTES)
    except ValueError as error:
        raise SigningKeysInvalid(str(error)) from None


def _unwritable(path: Path, error: Exception) -> CommandFailure:
    if isinstance(error, FileNotFoundError):
        return CommandFailure(
            "PARLEY_ERR_KEY",
            f"there is no key file {path}",
            hint=f"parley keys generate {path} creates one",
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CommandFailure("PARLEY_ERR_KEY", f"{path}: {reason}")


def _report(output: Output, path: Path, keys: Sequence[SigningKey], now: float) -> None:
    output.report(
        {"file": str(path), "keys": [_document(key, now) for key in keys]},
        ("File", path),
        *[("Key", f"{key.kid} {key.alg}, {_state(key, now)}") for key in keys],
    )


def _document(key: SigningKey, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {**key.public, "state": "over" if key.is_over(now) else key.state}
    if key.until is not None:
        found["until"] = _time(key.until)
    return found


def _state(key: SigningKey, now: float) -> str:
    if key.is_over(now):
        return "expired: no longer published"
    match key.state:
        case "current":
            return "current: it signs"
        case "next":
            return "next: published, and signs after the next rotation"
    until = "" if key.until is None else f" until {_time(key.until)}"
    return f"previous: published{until}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
