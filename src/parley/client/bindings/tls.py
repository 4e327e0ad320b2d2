"""The TLS settings of a client: whom it trusts, and what it shows. For HTTP and gRPC alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import ssl


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Authorities and a certificate, as PEM files.

    ``ca`` are the authorities to trust in place of the system's: a file, or a folder as OpenSSL has
    them. ``cert`` is the client's own certificate with its chain, for servers that require one, and
    ``key`` its key, which may be in the same file. An encrypted key is refused.

    Raises ``ValueError`` for a key without a certificate.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise ValueError("a key goes with its certificate: give both")

    @property
    def key_file(self) -> str | Path | None:
        """The file of the key."""
        return self.cert if self.key is None else self.key

    def context(self, *, verify: bool = True, with_certificate: bool = False) -> ssl.SSLContext:
        """Return what a connection is made with. Raises ``ValueError`` for unusable files."""
        import ssl

        ca = None if self.ca is None else Path(self.ca)
        try:
            if ca is not None and ca.is_dir():
                made = ssl.create_default_context(capath=str(ca))
            else:
                made = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"the authorities in {ca} cannot be used: {_reason(error)}") from None
        if not verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        if with_certificate and self.cert is not None:
            try:
                # Without a password OpenSSL would ask for one on the terminal.
                made.load_cert_chain(self.cert, self.key, password=lambda: "")
            except (OSError, ssl.SSLError, ValueError) as error:
                raise ValueError(
                    f"the certificate {self.cert} with the key {self.key_file} cannot be used: "
                    f"{_reason(error)}; give PEM files that belong together, the key unencrypted"
                ) from None
        return made


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
