"""Handles: how hosts name a task of an agent."""

from __future__ import annotations

import hashlib
import hmac

MAC_LENGTH = 22
"""How many hexadecimal digits of the code are part of a handle."""


class UnknownHandle(Exception):
    """A handle that was not made here, or not for this caller."""

    def __init__(self) -> None:
        super().__init__("there is no such task; its name is what the tool that started it said")


class Handles:
    """Names tasks as ``agent.task``, and with a ``key`` binds each name to its caller.

    Where several callers share the agents' credentials, nobody can name a task of another. A
    ``principal`` of ``None`` is the one host of a connection that no other has: its names are not
    bound.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key

    def make(self, agent: str, task_id: str, principal: str | None = "") -> str:
        """Return the handle of a task."""
        named = f"{agent}.{task_id}"
        if not self._key or principal is None:
            return named
        return f"{named}.{self._mac(named, principal)}"

    def read(self, handle: str, principal: str | None = "") -> tuple[str, str]:
        """Return the agent and the id of the task. Raises ``UnknownHandle``."""
        named = handle
        if self._key and principal is not None:
            named, _, mac = handle.rpartition(".")
            if not hmac.compare_digest(mac.encode(), self._mac(named, principal).encode()):
                raise UnknownHandle
        agent, _, task_id = named.partition(".")
        if not agent or not task_id:
            raise UnknownHandle
        return agent, task_id

    def _mac(self, named: str, principal: str) -> str:
        text = f"{len(principal)}:{principal}{named}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[:MAC_LENGTH]
