"""``parley keys``: manages API keys of callers in a store, and hashes passwords."""

from __future__ import annotations

import getpass
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import msgspec

from parley.cli.commands.signing_keys import COMMANDS, TWO_KINDS, rotate_file
from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output
from parley.cli.settings.options import LOCAL_OPTIONS, Argument, CommandOption
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import (
    EXITS,
    PASSWORDS,
    STORE,
    STORE_VARIABLE,
    InShared,
    act,
    record_act,
    require_current,
    with_record,
)
from parley.model.option import parse_span
from parley.security.api_keys import STORE_SECRET, ApiKeyRecord, id_in, new_key
from parley.security.credentials import hash_password
from parley.store.admin.admin import StoreAdmin

EXAMPLES = """\b
Examples:
  parley keys create --owner ada --scope read --expires 90d --label laptop
  parley keys list --owner ada
  parley keys rotate k3v0q81zmd27ftx4 --overlap 7d
  parley keys revoke k3v0q81zmd27ftx4"""

EPILOG = f"{EXITS}\n\n{PASSWORDS}"
ONCE = "shown only once: the store has only a hash of it"


class KeyStore(InShared, frozen=True):
    """The store with the keys."""

    alone: ClassVar = (
        "keys need a store",
        "; or give ApiKey(keys=...) the hashes of keys that you manage yourself",
    )


class NewKey(KeyStore, frozen=True):
    """The options of ``parley keys create``."""

    owner: Annotated[str, CommandOption("The owner: the id of callers who use the key.", "ID")] = ""
    scope: Annotated[
        tuple[str, ...], CommandOption("A scope of the key; repeatable.", "SCOPE")
    ] = ()
    expires: Annotated[
        str,
        CommandOption(
            "How long the key is valid, such as 90d or 12h.", "SPAN", default="until it is revoked"
        ),
    ] = ""
    label: Annotated[str, CommandOption("A description of its purpose, for the list.", "TEXT")] = ""


@COMMANDS.work("create", EXAMPLES, TWO_KINDS)
def create(output: Output, admin: StoreAdmin, options: NewKey) -> None:
    """Create an API key in a store, and show it, once.

    The store has only a hash of it. Servers on this store accept it from then on, for agents with
    security=ApiKey(). An owner may have several keys at once. Works with and without a running
    server on the store.
    """
    if not options.owner:
        raise UsageFailure("give the owner of the key with --owner, such as --owner ada")
    require_current(admin)
    span = _span(options.expires, "--expires") if options.expires else None
    key, record = _create(admin, options, span)
    _report(output, admin, record, key)  # the key exists now, and is shown only here
    record_act(admin, act("key.created", subject=record.id, details=_facts(record)))


class OwnedKeys(KeyStore, frozen=True):
    """The options of ``parley keys list``."""

    owner: Annotated[str, CommandOption("Only the keys of this owner.", "ID")] = ""


@COMMANDS.work("list")
def list_(output: Output, admin: StoreAdmin, options: OwnedKeys) -> None:
    """List the keys of a store, without their secrets.

    Revoked and expired keys are listed for 30 days. Works while the store is in use.
    """
    require_current(admin)
    now, found = admin.now(), admin.api_keys(options.owner)
    output.report(
        {"store": admin.name, "keys": [_document(record, now) for record in found]},
        ("Store", admin.name),
        ("Keys", len(found) or "none"),
        *[("Key", _line(record, now)) for record in found],
    )


class Revoked(KeyStore, frozen=True, kw_only=True):
    """The options of ``parley keys revoke``."""

    id: Annotated[str, Argument("The id of the key, from parley keys list.", "ID")]


@COMMANDS.work("revoke")
def revoke(output: Output, admin: StoreAdmin, options: Revoked) -> None:
    """Revoke a key: servers reject it within seconds, with a SQLite store at once."""
    require_current(admin)
    id = id_in(options.id) or options.id
    record = _found(admin, admin.end_api_key(id, revoked_at=admin.now()))
    record_act(admin, act("key.revoked", subject=record.id, details=_facts(record)))
    _report(output, admin, record)


class RotateOptions(msgspec.Struct, frozen=True):
    """The options of ``parley keys rotate``."""

    id: Annotated[
        str,
        Argument(
            "The id of an API key (parley keys list), or a file of signing keys, with a dot "
            "or a slash in its name.",
            "ID|FILE",
        ),
    ]
    overlap: Annotated[
        str,
        CommandOption(
            "How long the old API key stays valid in addition to the new one, or the old signing "
            "key stays "
            "published.",
            "SPAN",
            default="7d for an API key, 24h for signing keys",
        ),
    ] = ""
    expires: Annotated[
        str,
        CommandOption(
            "How long the new API key is valid.", "SPAN", default="the validity of the old key"
        ),
    ] = ""
    store: Annotated[
        str,
        CommandOption(
            "The store with the API key; for signing keys, the store whose audit log records the "
            "rotation.",
            "URL",
            variable=STORE_VARIABLE,
            default=f"{STORE} for an API key; none for signing keys",
        ),
    ] = ""


@COMMANDS.add("rotate", *LOCAL_OPTIONS, epilog=f"{TWO_KINDS}\n\n{EPILOG}")
def rotate(settings: CommandSettings, output: Output, options: RotateOptions) -> None:
    """Replace old keys by new keys; the old keys stay valid for a while.

    With the ID of an API key: create a key with the same owner, scopes and label; the old key then
    expires. With a FILE of signing keys: the next key becomes the signing key, the current key
    stays published until the overlap is over, and a new next key is created. Servers reload the
    file automatically.
    """
    if any(each in options.id for each in "./\\"):
        if options.expires:
            raise UsageFailure("--expires is for API keys: signing keys are replaced by rotation")
        overlap = options.overlap or "24h"
        with_record(options.store, lambda record: rotate_file(output, options.id, overlap, record))
        return
    KeyStore(options.store or STORE).admin(lambda admin: _rotate(output, admin, options))


def _rotate(output: Output, admin: StoreAdmin, options: RotateOptions) -> None:
    """Create a key that replaces another, which expires after a while, and report the new key."""
    require_current(admin)
    lasts = _span(options.overlap or "7d", "--overlap")
    id, now = id_in(options.id) or options.id, admin.now()
    old = _found(admin, next((each for each in admin.api_keys() if each.id == id), None))
    ended_at = old.ended_at()
    if old.revoked_at is not None or (ended_at is not None and ended_at <= now):
        raise CommandFailure(
            "PARLEY_ERR_KEY",
            f"the key {id} is no longer valid",
            hint=f"parley keys create --owner {old.owner} creates a new key",
        )
    span = _span(options.expires, "--expires") if options.expires else None
    if span is None and old.expires_at is not None:
        span = (old.expires_at - old.created_at) / 1000
    same = NewKey(owner=old.owner, scope=tuple(old.scopes), label=old.label)
    key, record = _create(admin, same, span)
    ends = admin.end_api_key(id, expires_at=now + round(lasts * 1000))
    details = _facts(record) | {"replaces": id, "until": None if ends is None else ends.ended_at()}
    _report(output, admin, record, key, old=ends)
    record_act(admin, act("key.rotated", subject=record.id, details=details))


@COMMANDS.add("hash-password", *LOCAL_OPTIONS, epilog=EXITS)
def hash_typed(settings: CommandSettings, output: Output) -> None:
    """Read a password, and print its hash for Basic(users={"ada": "scrypt$..."}).

    Without a terminal, the password is the first line of standard input.
    """
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            raise UsageFailure("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    with wrong_usage():
        made = hash_password(password)
    output.report({"hash": made}, ("Hash", made))


def _facts(record: ApiKeyRecord) -> dict[str, Any]:
    """Return the details of a key for the audit log, without secrets."""
    return {
        "owner": record.owner,
        "scopes": list(record.scopes),
        "label": record.label,
        "expiresAt": record.expires_at,
    }


def _create(admin: StoreAdmin, wanted: NewKey, span: float | None) -> tuple[str, ApiKeyRecord]:
    now = admin.now()
    with wrong_usage():
        key, record = new_key(
            admin.secret(STORE_SECRET),
            owner=wanted.owner,
            scopes=wanted.scope,
            label=wanted.label,
            now=now,
            expires_at=None if span is None else now + round(span * 1000),
        )
    admin.add_api_key(record)
    return key, record


def _found(admin: StoreAdmin, record: ApiKeyRecord | None) -> ApiKeyRecord:
    if record is None:
        raise CommandFailure(
            "PARLEY_ERR_KEY",
            f"there is no key with this id in {admin.name}",
            hint="parley keys list shows the ids",
        )
    return record


def _report(
    output: Output,
    admin: StoreAdmin,
    record: ApiKeyRecord,
    key: str = "",
    *,
    old: ApiKeyRecord | None = None,
) -> None:
    """Report a key, a new key with its secret."""
    now = admin.now()
    document = {"store": admin.name} | ({"key": key} if key else {}) | _document(record, now)
    fields = [("Store", admin.name), ("Id", record.id), ("Owner", record.owner)]
    if record.scopes:
        fields.append(("Scopes", " ".join(record.scopes)))
    if record.label:
        fields.append(("Label", record.label))
    fields.append(("State", _state(record, now)))
    if old is not None:
        document["replaces"] = _document(old, now)
        fields.append(("Replaces", f"{old.id}, {_state(old, now)}"))
    if key:
        fields += [("Key", key), ("Note", ONCE)]
    output.report(document, *fields)


def _line(record: ApiKeyRecord, now: int) -> str:
    scopes = f" ({' '.join(record.scopes)})" if record.scopes else ""
    label = f", {record.label}" if record.label else ""
    created = f", created {_time(record.created_at)}"
    return f"{record.id} of {record.owner}{scopes}{label}{created}, {_state(record, now)}"


def _document(record: ApiKeyRecord, now: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": record.id,
        "owner": record.owner,
        "label": record.label,
        "scopes": list(record.scopes),
        "createdAt": _time(record.created_at),
        "state": _state(record, now).partition(" ")[0],
    }
    if record.expires_at is not None:
        document["expiresAt"] = _time(record.expires_at)
    if record.revoked_at is not None:
        document["revokedAt"] = _time(record.revoked_at)
    return document


def _state(record: ApiKeyRecord, now: int) -> str:
    if record.revoked_at is not None:
        return f"revoked {_time(record.revoked_at)}"
    if record.expires_at is None:
        return "valid until it is revoked"
    is_over = record.expires_at <= now
    return f"{'expired' if is_over else 'valid until'} {_time(record.expires_at)}"


def _time(ms: int) -> str:
    at = datetime.fromtimestamp(ms // 1000, UTC)
    return at.isoformat().replace("+00:00", "Z")


def _span(text: str, option: str) -> float:
    try:
        seconds = parse_span(text)
    except ValueError:
        raise UsageFailure(f"{option}: {text!r} is not a span such as 90d, 12h or 30m") from None
    if seconds > 100 * 365 * 86_400:
        raise UsageFailure(f"{option}: {text!r} is more than 100 years")
    return seconds
