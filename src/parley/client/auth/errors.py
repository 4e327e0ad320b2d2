"""The error of an issuer that gives no token."""

from __future__ import annotations

from parley.client.errors import AuthenticationRequired


class TokenRefused(AuthenticationRequired):
    """There is no token: the issuer refuses, cannot be asked, or must not be.

    ``error`` is its code (RFC 6749 §5.2), such as ``invalid_client``, if it gave one, and
    ``unreachable`` if it did not answer, or fails.
    """

    def __init__(self, message: str, *, error: str = "") -> None:
        super().__init__(message, status=401)
        self.error = error

    @property
    def is_transient(self) -> bool:
        """Whether the issuer has decided nothing, and may give the token later."""
        return self.error in ("unreachable", "temporarily_unavailable", "server_error")
