"""Makes signing keys, and rotates them: next, current, previous, gone.

Works on the JSON of a key set. A private key is never in an error, and is left out of keys that no
longer sign.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.security.signing.keys import (
    ALGORITHMS,
    CURRENT,
    MAX_KEYS,
    NEXT,
    PREVIOUS,
    SigningKey,
    SigningKeysInvalid,
    read_key,
    read_key_set,
)
from parley.security.signing.strict_json import read_object

DEFAULT_OVERLAP = 24 * 3600.0
"""How long a key is published after it signed last, in seconds."""

RSA_BITS = 3072

_PRIVATE = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))

Document = dict[str, Any]


class Rotation(msgspec.Struct, frozen=True):
    """A rotated key set, and what changed: the ids of keys.

    ``unpublished`` are those that sign now and were never published before: verifiers who keep key
    sets have to fetch them again.
    """

    document: Document
    signs: tuple[str, ...]
    ended: tuple[str, ...]
    removed: tuple[str, ...]
    unpublished: tuple[str, ...]
    published_at: float
    """When the youngest key that signs now was made, and so published at the earliest."""


def new_jwk(alg: str, state: str, now: float) -> dict[str, Any]:
    """Return a new private JWK, whose id is its thumbprint (RFC 7638). Raises ``ValueError``."""
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    key: Any
    match alg:
        case "ES256":
            key = ECKey.generate_key("P-256")
        case "EdDSA":
            key = OKPKey.generate_key("Ed25519")
        case "RS256":
            key = RSAKey.generate_key(RSA_BITS)
        case _:
            raise ValueError(f"signing keys are for {', '.join(ALGORITHMS)}, not for {alg!r:.40}")
    members = key.as_dict(private=True)
    own = {"kid": key.thumbprint(), "alg": alg, "use": "sig"}
    return {**own, "state": state, "created": int(now), **members}


def new_key_set(algorithms: Iterable[str], now: float) -> Document:
    """Return a key set with a current and a next key for each algorithm.

    The first algorithm is that of what can be signed only once. Raises ``ValueError``.
    """
    given = tuple(dict.fromkeys(algorithms)) or ALGORITHMS[:1]
    states = (CURRENT, NEXT)
    return {"keys": [new_jwk(alg, state, now) for state in states for alg in given]}


def rotated(text: str | bytes, now: float, overlap: float, what: str = "the key set") -> Rotation:
    """Return a key set whose next keys sign, and the current ones are previous.

    A previous key is published until ``overlap`` seconds have passed, and then removed by the next
    rotation. Raises ``SigningKeysInvalid``.
    """
    if overlap < 0:
        raise SigningKeysInvalid("the overlap of a rotation is not negative")
    keys = read_key_set(text, what)
    document = read_object(text, limit=len(text) * 4 + 1, what=what)
    jwks = document.get("keys", [document])
    given = list(zip(keys, jwks, strict=True))
    current = [each for each in given if each[0].state == CURRENT]
    waiting = [each for each in given if each[0].state == NEXT]
    signing, unpublished = [], []
    for old, _ in current:
        taken = next((each for each in waiting if each[0].alg == old.alg), None)
        if taken is None:
            made = new_jwk(old.alg, CURRENT, now)
            signing.append(made)
            unpublished.append(made["kid"])
        else:
            waiting.remove(taken)
            signing.append({**taken[1], "kid": taken[0].kid, "state": CURRENT})
    upcoming = [new_jwk(old.alg, NEXT, now) for old, _ in current]
    ended = [_ended(key, jwk, now + overlap) for key, jwk in current]
    previous = [each for each in given if each[0].state == PREVIOUS]
    kept = [{**jwk, "kid": key.kid} for key, jwk in previous if not key.is_over(now)]
    rest = [{**jwk, "kid": key.kid} for key, jwk in waiting]
    found = [*signing, *upcoming, *rest, *ended, *kept]
    if len(found) > MAX_KEYS:
        raise SigningKeysInvalid(
            f"{what} would have {len(found)} keys, and at most {MAX_KEYS} are read: it was rotated "
            "often within one overlap; wait until previous keys are over"
        )
    return Rotation(
        {"keys": found},
        signs=tuple(each["kid"] for each in signing),
        ended=tuple(key.kid for key, _ in current),
        removed=tuple(key.kid for key, _ in previous if key.is_over(now)),
        unpublished=tuple(unpublished),
        published_at=max(_created(each) for each in signing),
    )


def write_key_set(document: Mapping[str, Any]) -> bytes:
    """Return a key set as the text of a file. Raises ``SigningKeysInvalid``."""
    text = json.dumps(document, indent=2).encode() + b"\n"
    read_key_set(text, "the new key set")
    return text


def _ended(key: SigningKey, jwk: Mapping[str, Any], until: float) -> dict[str, Any]:
    """Return a key that signs no more: only its public half is kept."""
    public = {name: value for name, value in jwk.items() if name not in _PRIVATE}
    return {**public, "kid": key.kid, "state": PREVIOUS, "until": int(until)}


def _created(jwk: Mapping[str, Any]) -> float:
    return read_key(jwk).created
