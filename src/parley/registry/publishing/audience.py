"""Audiences: who sees an entry.

Everybody does if it has none. Else it has tokens, and a viewer with one of them sees it, finds it,
and is counted it; for all others it is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parley.model.errors import InvalidParamsError
from parley.model.ids import may_be_name
from parley.model.service import Caller

MAX_AUDIENCE = 100
PUBLIC = "public"
AUTHENTICATED = "authenticated"
"""All callers that proved who they are."""

FORMS = (
    "'public', 'authenticated', 'caller:ada', 'client:shop', 'scope:agents.read', or "
    '{"caller": "ada", "issuer": "https://login.example.com"} for a caller of another issuer'
)


def caller_token(owner: str) -> str:
    """Return the token that stands for one caller (``Caller.owner``)."""
    return f"caller:{owner}"


def scope_token(scope: str) -> str:
    """Return the token that stands for all callers with a scope."""
    return f"scope:{scope}"


def tokens_of(caller: Caller) -> tuple[str, ...]:
    """Return the tokens that a caller has; none without proof of who it is."""
    if not caller.authenticated or not caller.owner:
        return ()
    return (caller_token(caller.owner), AUTHENTICATED, *map(scope_token, sorted(caller.scopes)))


def read_audience(given: Iterable[str | Mapping[str, Any]], publisher: Caller) -> tuple[str, ...]:
    """Return the tokens of an audience as a publisher writes it; it is part of its own audience.

    ``caller:ada`` is the user ada of the publisher's own issuer, ``client:shop`` an application.
    Raises ``InvalidParamsError``.
    """
    if isinstance(given, str | Mapping):
        raise InvalidParamsError(f"an audience is a list; of {FORMS}")
    listed = list(given)
    if len(listed) > MAX_AUDIENCE:
        raise InvalidParamsError(f"an audience has at most {MAX_AUDIENCE} members: name a scope")
    tokens = [_token(each, publisher) for each in listed]
    if not tokens or PUBLIC in tokens:
        if len(tokens) > 1:
            raise InvalidParamsError("'public' is everybody: leave out the rest, or leave it out")
        return ()
    return tuple(dict.fromkeys((*tokens, caller_token(publisher.owner))))


def _token(given: str | Mapping[str, Any], publisher: Caller) -> str:
    if isinstance(given, Mapping):
        kind = "client" if "client" in given else "caller"
        name, issuer = given.get(kind), given.get("issuer", publisher.issuer)
        is_known = set(given) <= {kind, "issuer"}
        if not is_known or not _is_name(name) or not isinstance(issuer, str):
            raise _wrong(given)
        if issuer and not _is_name(issuer):
            raise _wrong(given)
        return _caller_token(kind, str(name), issuer)
    if given in (PUBLIC, AUTHENTICATED):
        return given
    kind, _, name = given.partition(":") if isinstance(given, str) else ("", "", "")
    if not _is_name(name):
        raise _wrong(given)
    if kind in ("caller", "client"):
        return _caller_token(kind, name, publisher.issuer)
    if kind == "scope" and " " not in name:
        return scope_token(name)
    raise _wrong(given)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 200 and may_be_name(name)


def _wrong(given: Any) -> InvalidParamsError:
    return InvalidParamsError(f"{str(given)[:100]!r} is no audience: write {FORMS}")


def _caller_token(kind: str, name: str, issuer: str) -> str:
    client = name if kind == "client" else ""
    return caller_token(Caller(id=name, issuer=issuer, client=client, authenticated=True).owner)
