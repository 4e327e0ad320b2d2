"""``parley keys``: API keys in a store."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import parse_span
from parley.cli.store.acts import act, record_act, require_current
from parley.security.api_keys import STORE_SECRET, ApiKeyRecord, id_in, new_key
from parley.security.credentials import hash_password
from parley.store.admin.admin import StoreAdmin

ONCE = "it is shown this once: the store has only a hash of it"


def create(
    output: Output,
    admin: StoreAdmin,
    *,
    owner: str,
    scopes: Sequence[str],
    expires: str,
    label: str,
) -> None:
    """Create a key, and report it."""
    if not owner:
        raise UsageFailure("say whose key it is with --owner, such as --owner ada")
    require_current(admin)
    span = _span(expires, "--expires") if expires else None
    key, record = _create(admin, owner=owner, scopes=scopes, label=label, span=span)
    _report_new(output, admin, key, record)  # it is made, and shown nowhere else
    record_act(admin, act("key.created", subject=record.id, details=_facts(record)))


def show(output: Output, admin: StoreAdmin, owner: str) -> None:
    """Report the keys."""
    require_current(admin)
    now, found = admin.now(), admin.api_keys(owner)
    if output.is_json:
        output.document({"store": admin.name, "keys": [_document(record, now) for record in found]})
        return
    output.text.field("Store", admin.name)
    output.text.field("Keys", len(found) or "none")
    for each in found:
        scopes = f" ({' '.join(each.scopes)})" if each.scopes else ""
        label = f", {each.label}" if each.label else ""
        created = f", created {_time(each.created_at)}"
        output.text.field(
            "Key", f"{each.id} of {each.owner}{scopes}{label}{created}, {_state(each, now)}"
        )


def revoke(output: Output, admin: StoreAdmin, id: str) -> None:
    """Revoke a key, and report it."""
    require_current(admin)
    record = _found(admin, admin.end_api_key(id_in(id) or id, revoked_at=admin.now()))
    record_act(admin, act("key.revoked", subject=record.id, details=_facts(record)))
    _report(output, admin, record)


def rotate(output: Output, admin: StoreAdmin, id: str, *, overlap: str, expires: str) -> None:
    """Create a key in place of another, which ends after a while, and report the new one."""
    require_current(admin)
    lasts = _span(overlap, "--overlap")
    id, now = id_in(id) or id, admin.now()
    old = _found(admin, next((each for each in admin.api_keys() if each.id == id), None))
    ended_at = old.ended_at()
    if old.revoked_at is not None or (ended_at is not None and ended_at <= now):
        raise CommandFailure(
            "PARLEY_ERR_KEY",
            f"the key {id} is not valid any more",
            hint=f"parley keys create --owner {old.owner} makes a new one",
        )
    span = _span(expires, "--expires") if expires else None
    if span is None and old.expires_at is not None:
        span = (old.expires_at - old.created_at) / 1000
    key, record = _create(admin, owner=old.owner, scopes=old.scopes, label=old.label, span=span)
    ends = admin.end_api_key(id, expires_at=now + round(lasts * 1000))
    details = _facts(record) | {"replaces": id, "until": None if ends is None else ends.ended_at()}
    _report_new(output, admin, key, record, old=ends)
    record_act(admin, act("key.rotated", subject=record.id, details=details))


def hash_typed(output: Output) -> None:
    """Read a password, and report its hash."""
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            raise UsageFailure("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    try:
        made = hash_password(password)
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    if output.is_json:
        output.document({"hash": made})
    else:
        output.text.field("Hash", made)


def _facts(record: ApiKeyRecord) -> dict[str, Any]:
    """Return what the audit says of a key: nothing that proves anything."""
    return {
        "owner": record.owner,
        "scopes": list(record.scopes),
        "label": record.label,
        "expiresAt": record.expires_at,
    }


def _create(
    admin: StoreAdmin, *, owner: str, scopes: Sequence[str], label: str, span: float | None
) -> tuple[str, ApiKeyRecord]:
    now = admin.now()
    try:
        key, record = new_key(
            admin.secret(STORE_SECRET),
            owner=owner,
            scopes=scopes,
            label=label,
            now=now,
            expires_at=None if span is None else now + round(span * 1000),
        )
    except ValueError as error:
        raise UsageFailure(str(error)) from None
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


def _report_new(
    output: Output,
    admin: StoreAdmin,
    key: str,
    record: ApiKeyRecord,
    *,
    old: ApiKeyRecord | None = None,
) -> None:
    """Report a new key, with its secret."""
    now = admin.now()
    if output.is_json:
        document = {"store": admin.name, "key": key, **_document(record, now)}
        output.document(document if old is None else document | {"replaces": _document(old, now)})
        return
    _report(output, admin, record)
    if old is not None:
        output.text.field("Replaces", f"{old.id}, {_state(old, now)}")
    output.text.field("Key", key)
    output.text.field("Note", ONCE)


def _report(output: Output, admin: StoreAdmin, record: ApiKeyRecord) -> None:
    now = admin.now()
    if output.is_json:
        output.document({"store": admin.name, **_document(record, now)})
        return
    output.text.field("Store", admin.name)
    output.text.field("Id", record.id)
    output.text.field("Owner", record.owner)
    if record.scopes:
        output.text.field("Scopes", " ".join(record.scopes))
    if record.label:
        output.text.field("Label", record.label)
    output.text.field("State", _state(record, now))


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
