"""Messages that can be sent again (``docs/extensions/idempotent-send.md``).

Telling repeats apart is what admission does, with the store; this declares it.
"""

from __future__ import annotations

from parley.model.extensions import IDEMPOTENT_SEND, Extension


class IdempotentSend(Extension):
    """A message that comes twice is answered once, for callers that ask for it."""

    uri = IDEMPOTENT_SEND
    description = (
        "A message that is sent again with the same messageId is answered as it was before."
    )
