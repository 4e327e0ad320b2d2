"""Nonces of signed messages: each is good once, on all replicas and over restarts.

A nonce is taken before the message is admitted, and forgotten when no message with it would be in
time any more.
"""

from __future__ import annotations

import logging

from parley.envelope.errors import MessageReplayed
from parley.model.errors import OverloadedError
from parley.server.limits.once import OnceStore, StoredNames
from parley.store.protocols.errors import StoreError

log = logging.getLogger("parley.envelope")


class Nonces:
    """Takes nonces. Nothing is kept in memory."""

    def __init__(self, store: OnceStore) -> None:
        self._names = StoredNames(store)

    async def take(self, owner: str, nonce: str, until: int) -> None:
        """Take a nonce of a signer, whose message is in time until ``until`` (ms).

        Raises ``MessageReplayed`` if it was taken, and ``OverloadedError`` if the store cannot
        tell: then no message is admitted.
        """
        try:
            is_new = await self._names.take("envelope nonce", owner, nonce, until=until)
        except StoreError as error:
            log.warning("signed messages are refused, because the store keeps no nonces: %s", error)
            raise OverloadedError(
                "the server cannot check now that this message is new; sign and send it again",
                retry_after=1,
            ) from error
        if not is_new:
            raise MessageReplayed(
                "security.nonce was used before: sign each sending anew, with a fresh nonce; the "
                "same messageId makes it the same request"
            )
