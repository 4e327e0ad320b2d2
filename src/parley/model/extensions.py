"""The extensions of A2A that Parley itself brings (specification §4.6)."""

from __future__ import annotations

from parley.model.cards import AgentExtension

RESUMABLE_STREAMS = "urn:parley:resumable-streams:v1"
IDEMPOTENT_SEND = "urn:parley:idempotent-send:v1"

EXTENSIONS = (
    AgentExtension(
        uri=RESUMABLE_STREAMS,
        description=(
            "Every event of a stream has a number (SSE id); SubscribeToTask with Last-Event-ID "
            "goes on after it, also on a task that has ended."
        ),
    ),
    AgentExtension(
        uri=IDEMPOTENT_SEND,
        description=(
            "A message that is sent again with the same messageId is answered as it was before."
        ),
    ),
)
