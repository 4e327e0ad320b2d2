"""Measure what a token costs a request, from its ASGI scope to its caller.

    python benchmarks/tokens.py

Each algorithm is measured with a token that comes for the first time, and with one that is known
by its hash; beside them the bare signature. Rounds are interleaved, so that what else the machine
does hits all alike; the figures are the best of many rounds. The ratios carry over to other
machines, the microseconds do not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from time import process_time_ns
from typing import Any

from parley.conformance.signing_keys import new_key, signed
from parley.model.service import Caller
from parley.security import Bearer, Jwt
from parley.security.authentication import Authenticator
from parley.security.key_sets import keys_of
from parley.security.schemes.tokens import read_jwt

ROUNDS = 200
REPEATS = 10
ALGORITHMS = ("RS256", "ES256", "EdDSA")


def scope_of(token: str) -> dict[str, Any]:
    """Return the scope of a request with a token."""
    headers = [
        (b"host", b"bank.example.com"),
        (b"content-type", b"application/json"),
        (b"authorization", f"Bearer {token}".encode()),
    ]
    return {"headers": headers, "query_string": b"", "client": ("127.0.0.1", 1)}


def caller_of(authenticator: Authenticator, scope: dict[str, Any]) -> Caller:
    """Return the caller of a request that is authenticated without waiting for anything."""
    found = authenticator(scope)
    if isinstance(found, Caller):
        return found
    try:
        found.send(None)  # type: ignore[attr-defined]
    except StopIteration as done:
        return done.value
    raise AssertionError("a token with known keys waits for nothing")


def cases(alg: str) -> dict[str, Callable[[], object]]:
    """Return what is measured of an algorithm."""
    key = new_key(alg)
    now = int(time.time())
    claims = {"iss": "https://id.example.com", "aud": "bank", "sub": "ada", "scope": "read pay"}
    claims |= {"client_id": "shop", "iat": now, "exp": now + 3600, "jti": "0123456789abcdef"}
    token = signed({"alg": alg, "kid": key.kid, "typ": "at+jwt"}, claims, key)
    public = key.as_dict(private=False)
    scheme = Jwt(issuer=claims["iss"], audience="bank", keys=public)
    authenticator = Authenticator([scheme.security])
    scope = scope_of(token)
    [own], parsed = keys_of(public), read_jwt(token)

    def first() -> object:
        scheme._verified.clear()
        return caller_of(authenticator, scope)

    return {
        f"{alg}, signature alone": lambda: own.verifies(
            alg, parsed.signing_input, parsed.signature
        ),
        f"{alg}, first time": first,
        f"{alg}, known": lambda: caller_of(authenticator, scope),
    }


def bare() -> dict[str, Callable[[], object]]:
    """Return the least that a token costs: a look-up in a dictionary."""
    known = {"token": Caller(id="ada")}
    authenticator = Authenticator([Bearer(known.get).security])
    scope = scope_of("token")
    return {"Bearer with a dict": lambda: caller_of(authenticator, scope)}


def main() -> int:
    """Measure, and print microseconds of CPU and what the cache saves."""
    measured = bare()
    for alg in ALGORITHMS:
        measured |= cases(alg)
    best = dict.fromkeys(measured, float("inf"))
    for case in measured.values():
        assert case()
    for _ in range(ROUNDS):
        for name, case in measured.items():
            begin = process_time_ns()
            for _ in range(REPEATS):
                case()
            best[name] = min(best[name], (process_time_ns() - begin) / REPEATS / 1000)
    for name, micros in best.items():
        print(f"{name:28} {micros:8.1f} µs")
    for alg in ALGORITHMS:
        ratio = best[f"{alg}, first time"] / best[f"{alg}, known"]
        beside = best[f"{alg}, first time"] / best[f"{alg}, signature alone"]
        print(f"{alg}: the cache saves {ratio:.1f}x; checks beside the signature {beside:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
