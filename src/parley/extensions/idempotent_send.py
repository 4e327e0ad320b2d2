"""Retries of a message without a second turn (``docs/extensions/idempotent-send.md``).

This only declares the extension: ``engine.service.admission`` detects repeated messages.
"""

from __future__ import annotations

from parley.model.extensions import IDEMPOTENT_SEND, Extension


class IdempotentSend(Extension):
    """A repeated message gets the first answer again, for callers that ask for it."""

    uri = IDEMPOTENT_SEND
    description = (
        "A message that is sent again with the same messageId is answered as it was before."
    )
