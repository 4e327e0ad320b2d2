"""Callback addresses: signed addresses, each of which completes one event of an agent, once.

The address carries a signed token, so it needs no row of its own and any replica reads it.
"""

from __future__ import annotations

from datetime import timedelta

from parley.security.signed_tokens import TokenInvalid, TokenSigner
from parley.server.endpoint import CALLBACKS
from parley.store.protocols.tables import check_key
from parley.store.task_store import TaskStore

LONGEST = timedelta(days=366)

_PURPOSE = "callback"
_SECRET = "signing"


class Callbacks:
    """Makes the callback addresses of one agent, and completes their events."""

    def __init__(self, store: TaskStore, agent: str) -> None:
        self._store = store
        self._agent = agent
        self._signer: TokenSigner | None = None

    async def address(self, base_url: str, key: str, *, tenant: str, expires: timedelta) -> str:
        """Return the address at which the event ``key`` is completed, below the agent's own.

        Raises ``ValueError`` without an address of the agent, for an invalid key, and
        for an invalid time.
        """
        check_key(key)
        if not isinstance(expires, timedelta) or not timedelta(0) < expires <= LONGEST:
            raise ValueError(
                f"expires is a positive timedelta of up to {LONGEST.days} days, not {expires!r}"
            )
        if not base_url:
            raise ValueError(
                "a callback address begins with the public address of the server, which messages "
                "over gRPC and in process do not carry: give it with url=, as in "
                "parley.asgi(agent, url='https://agents.example.com'), or parley serve --url"
            )
        expires_at = (self._store.now() + expires // timedelta(milliseconds=1)) // 1000 + 1
        claims = {"agent": self._agent, "event": key, "tenant": tenant}
        token = (await self._sign()).sign(_PURPOSE, claims, expires_at)
        return f"{base_url}{CALLBACKS}/{token}"

    async def event_of(self, token: str, tenant: str) -> str:
        """Return the key of the event that a token may complete, at the address of a tenant.

        An agent's own address takes the tokens of all its tenants. Raises ``TokenInvalid`` and
        ``TokenExpired``.
        """
        claims = (await self._sign()).read(_PURPOSE, token, self._store.now() / 1000)
        if claims["agent"] != self._agent or (tenant and claims["tenant"] != tenant):
            raise TokenInvalid
        key: str = claims["event"]
        return key

    async def complete(self, key: str, value: bytes) -> None:
        """Complete an event with a value (see ``event_value``); the same again changes nothing.

        Raises ``EventCompleted`` for another value, and ``StoreError``.
        """
        await self._store.complete_event(self._agent, key, value)

    async def _sign(self) -> TokenSigner:
        if self._signer is None:
            self._signer = TokenSigner(await self._store.secret(_SECRET))
        return self._signer
