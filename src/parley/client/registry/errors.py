"""What goes wrong with a registry.

    ClientError
    ├── RegistryRefused    the registry answered with an error
    ├── NotARegistry       the address leads to something else
    └── AgentNotFound      the registry has no entry of an identifier

``NoRegistry`` is a ``ValueError``: none was named.
"""

from __future__ import annotations

from parley.client.errors import ClientError


class RegistryRefused(ClientError):
    """A registry refused a request: ``status`` is that of HTTP, ``code`` its own error code."""

    def __init__(
        self, message: str, *, status: int, code: str = "", retry_after: float | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.retry_after = retry_after
        super().__init__(message)


class NotARegistry(ClientError):
    """The reference leads to no registry, and to no catalog."""


class AgentNotFound(ClientError):
    """A registry has no entry of an identifier, or shows it to others only."""


class NoRegistry(ValueError):
    """No registry was named; there is no default."""
