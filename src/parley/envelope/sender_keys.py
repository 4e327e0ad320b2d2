"""``parley keys share``: the keys of those who sign messages of the envelope protocol."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.store.acts import Record
from parley.envelope.jwks import jwk_of, read_key
from parley.envelope.server.keys import MAX_BYTES, EnvelopeKeysInvalid, read_envelope_keys
from parley.envelope.signatures import ED25519, SHORTEST_SECRET, EnvelopeKey
from parley.security.signing.private_file import WriteUnderWay, read_private, replacing
from parley.security.signing.strict_json import read_object


def share(
    output: Output, file: str, owner: str, public: str, sender_file: str, record: Record
) -> None:
    """Add a key of a sender to a file, and give the sender its half, if the sender has none."""
    path = Path(file)
    if bool(public) == bool(sender_file):
        raise UsageFailure(
            "name either the file that the sender gets (--to), or that of its public key (--public)"
        )
    keys = _published(Path(public), owner) if public else [_new_secret(owner)]
    known = _read(path)
    ids = {(each.get("owner"), each.get("kid")) for each in known["keys"]}
    for key in keys:
        if (key.owner, key.id) in ids:
            raise CommandFailure(
                "PARLEY_ERR_KEY", f"{path} has a key {key.id!r} of {key.owner!r} already"
            )
    document = {**known, "keys": [*known["keys"], *map(jwk_of, keys)]}
    if sender_file:  # first: a server must not have a secret that its sender never got
        _write(Path(sender_file), jwk_of(keys[0]), creates=True)
    _write(path, document, creates=not path.exists())
    for key in keys:
        record("envelope_key.shared", key.id, {"owner": key.owner, "algorithm": key.algorithm})
    _report(output, path, keys, sender_file)


def _new_secret(owner: str) -> EnvelopeKey:
    kid, material = secrets.token_hex(8), secrets.token_bytes(SHORTEST_SECRET)
    try:
        return EnvelopeKey(id=kid, owner=owner, algorithm="HMAC-SHA256", material=material)
    except ValueError as error:
        raise UsageFailure(f"--owner: {error}") from None


def _published(path: Path, owner: str) -> list[EnvelopeKey]:
    """Return the public keys for Ed25519 in a file: a JWK, or a JWK Set."""
    try:
        content = read_object(path.read_bytes(), limit=MAX_BYTES, what=f"the key file {path}")
        listed = content.get("keys", [content])
        jwks = [each for each in listed if isinstance(each, dict) and each.get("kty") == "OKP"]
        if any("d" in each for each in jwks):
            raise CommandFailure(
                "PARLEY_ERR_KEY",
                f"{path} has private keys, which only {owner} should have",
                hint=f"the public half of {path} is what parley keys show {path} -o json prints",
            )
        keys = [read_key({**each, "owner": owner}) for each in jwks]
    except OSError as error:
        raise CommandFailure("PARLEY_ERR_KEY", f"{path}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise CommandFailure("PARLEY_ERR_KEY", f"a key of {path} cannot be used: {error}") from None
    if not keys:
        raise CommandFailure(
            "PARLEY_ERR_KEY",
            f"{path} has no key for Ed25519",
            hint="parley keys generate --alg EdDSA makes one",
        )
    return keys


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"keys": []}
    try:
        read_envelope_keys(path)
        return read_object(read_private(path, limit=MAX_BYTES), limit=MAX_BYTES, what=str(path))
    except (EnvelopeKeysInvalid, ValueError) as error:
        raise CommandFailure("PARLEY_ERR_KEY", str(error)) from None


def _write(path: Path, document: dict[str, Any], *, creates: bool) -> None:
    try:
        with replacing(path, creates=creates) as write:
            write(json.dumps(document, indent=2).encode() + b"\n")
    except FileExistsError:
        raise CommandFailure(
            "PARLEY_ERR_KEY", f"{path} exists, and its keys may be in use: it is not replaced"
        ) from None
    except (OSError, WriteUnderWay) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandFailure("PARLEY_ERR_KEY", f"{path}: {reason}") from None


def _report(output: Output, path: Path, keys: list[EnvelopeKey], sender_file: str) -> None:
    if output.is_json:
        shown = [{"kid": key.id, "owner": key.owner, "algorithm": key.algorithm} for key in keys]
        output.document({"file": str(path), "sender": sender_file or None, "keys": shown})
        return
    output.text.field("File", path)
    for key in keys:
        output.text.field("Key", f"{key.id} {key.algorithm}, of {key.owner}")
    if keys[0].algorithm != ED25519:
        output.text.field(
            "Note", f"private: give {sender_file} to {keys[0].owner}, and nobody else"
        )
    output.text.field("Next", f"parley serve agent.py --envelope-keys {path}")
