"""HTTP+JSON, listening (specification §11)."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from parley.server.exchange import Surroundings
from parley.server.replies import reply_in_words


class HttpJsonBinding:
    """Answers the paths below an agent's address."""

    def __init__(self, surroundings: Surroundings, prefix: str) -> None:
        self._around = surroundings
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        await reply_in_words(scope, send, 404, "nothing is here")
