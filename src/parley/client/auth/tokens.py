"""Access tokens: one, and a cache of them that asks for each only once at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from parley.client.auth.errors import TokenRefused
from parley.client.headers import check_secret

MAX_TOKENS = 256
"""The tokens that one credential keeps."""

LEEWAY = 60.0
"""The seconds before its end at which a token is renewed, or a tenth of its life if less."""

MAX_LIFE = 10 * 365 * 86400.0
MAX_TOKEN_BYTES = 64 * 1024


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An access token, and what renews it. Times are seconds since the epoch.

    ``scopes`` are those that the issuer granted, as far as it says so.
    """

    access_token: str
    obtained_at: float
    expires_at: float | None = None
    refresh_token: str = ""
    scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at}, scopes={self.scopes})"

    def is_fresh(self, now: float) -> bool:
        """Return whether the token lives long enough for one more request."""
        if self.expires_at is None:
            return True
        return now < self.expires_at - min(LEEWAY, (self.expires_at - self.obtained_at) / 10)


def read_token(
    answer: Mapping[str, Any], where: str, *, now: float, previous: Token | None = None
) -> Token:
    """Return the token in an issuer's answer (RFC 6749 §5.1). Raises ``TokenRefused``.

    An answer without a refresh token or scopes leaves those of the ``previous`` token.
    """
    access = answer.get("access_token")
    kind = answer.get("token_type", "Bearer")
    if not isinstance(access, str) or not access or len(access) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"{where} answered without an access token")
    if not isinstance(kind, str) or kind.lower() not in ("bearer", "n_a"):
        raise TokenRefused(f"{where} gives tokens of the type {kind!r:.40}; expected Bearer")
    try:
        check_secret("the access token", access)
        if not access.isascii() or " " in access:
            raise ValueError
    except ValueError:
        raise TokenRefused(f"{where} gives a token that no header can carry") from None
    life = _seconds(answer.get("expires_in"))
    refresh, scope = answer.get("refresh_token"), answer.get("scope")
    return Token(
        access_token=access,
        obtained_at=now,
        expires_at=None if life is None else now + life,
        refresh_token=refresh
        if isinstance(refresh, str) and refresh
        else (previous.refresh_token if previous else ""),
        scopes=tuple(scope.split())
        if isinstance(scope, str)
        else (previous.scopes if previous else ()),
    )


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(seconds, MAX_LIFE) if seconds >= 0 else None


class TokenKey(NamedTuple):
    """What tells tokens of one credential apart."""

    origin: str
    issuer: str
    client: str
    scopes: tuple[str, ...]
    audience: str
    resource: str
    subject: str = ""


class TokenCache:
    """The tokens of one credential. Concurrent callers wait for one request to the issuer."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[TokenKey, Token] = OrderedDict()
        # A credential may be used on several event loops; a lock belongs to one.
        self._locks: WeakKeyDictionary[
            asyncio.AbstractEventLoop, OrderedDict[TokenKey, asyncio.Lock]
        ] = WeakKeyDictionary()

    def all(self) -> tuple[Token, ...]:
        """Return all tokens."""
        return tuple(self._tokens.values())

    async def get(
        self,
        key: TokenKey,
        obtain: Callable[[Token | None], Awaitable[Token]],
        *,
        now: Callable[[], float],
        refused: str = "",
    ) -> Token:
        """Return a fresh token, from ``obtain`` unless one is held.

        ``obtain`` gets the token that is held already. ``refused`` is an access token that a server
        did not accept: it is not returned again.
        """
        held = self._tokens.get(key)
        if held is not None and held.access_token != refused and held.is_fresh(now()):
            self._tokens.move_to_end(key)
            return held
        async with self._lock(key):
            held = self._tokens.get(key)
            if held is not None and held.access_token != refused and held.is_fresh(now()):
                return held
            token = await obtain(held)
            self.put(key, token)
            return token

    def put(self, key: TokenKey, token: Token) -> None:
        """Keep a token."""
        self._tokens[key] = token
        self._tokens.move_to_end(key)
        while len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)

    def _lock(self, key: TokenKey) -> asyncio.Lock:
        locks = self._locks.setdefault(asyncio.get_running_loop(), OrderedDict())
        lock = locks.setdefault(key, asyncio.Lock())
        if len(locks) > MAX_TOKENS:
            for other in [each for each, held in locks.items() if not held.locked()]:
                if other != key:
                    del locks[other]
        return lock
