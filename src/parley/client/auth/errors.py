"""The error of an issuer that gives no token."""

from __future__ import annotations

from parley.client.errors import AuthenticationRequired


class TokenRefused(AuthenticationRequired):
    """There is no token: the issuer refuses, cannot be asked, or must not be.

    ``error`` is its code (RFC 6749 §5.2), such as ``invalid_client``, if it gave one.
    """

    def __init__(self, message: str, *, error: str = "") -> None:
        super().__init__(message, status=401)
        self.error = error
