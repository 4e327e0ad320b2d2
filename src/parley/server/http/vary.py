"""The request headers that tell who calls, for ``Vary`` of answers that depend on it."""

from __future__ import annotations

from parley.security.authentication import Authenticator

_CREDENTIALS = (b"Authorization",)
_ANY = (b"Authorization", b"Cookie")


def caller_headers(identify: object) -> tuple[bytes, ...]:
    """Return the names of the headers that callers show who they are with.

    A function of a server's own may read any: then these are the usual ones.
    """
    if not isinstance(identify, Authenticator):
        return () if identify is None else _ANY
    found = dict.fromkeys(_CREDENTIALS)
    for scheme in identify.schemes:
        key = scheme.declared().api_key_security_scheme
        if key is None:
            continue
        if key.location == "cookie":
            found[b"Cookie"] = None
        elif key.location == "header":
            found[key.name.encode("latin-1")] = None
    return tuple(found)
