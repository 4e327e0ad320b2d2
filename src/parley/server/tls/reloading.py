"""TLS that follows its files: new connections get the certificate that is there now."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from parley.server.tls.files import Stamp, TlsFailure, TlsFiles, new_context, read_files, stamp_of
from parley.server.tls.options import CallerCertificates, TlsOptions

_log = logging.getLogger("parley.server")


class _Connection(ssl.SSLObject):
    """The TLS of one connection, which logs why a handshake failed."""

    def do_handshake(self) -> None:
        """Do the next step of the handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            is_about_caller = isinstance(error, ssl.SSLCertVerificationError) or (
                "PEER_DID_NOT_RETURN" in (error.reason or "")
            )
            level = logging.INFO if is_about_caller else logging.DEBUG
            why = getattr(error, "verify_message", "") or error.reason
            _log.log(level, "a TLS handshake failed: %s", why)
            raise


def _context() -> ssl.SSLContext:
    context = new_context()
    context.sslobject_class = _Connection
    return context


class _CurrentContext(ssl.SSLContext):
    """A context for an event loop's server, which passes each connection on to the current one."""

    tls: ReloadingTls

    def __new__(cls, tls: ReloadingTls) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.tls = tls
        return made

    def __init__(self, tls: ReloadingTls) -> None:
        """The arguments are those of ``__new__``."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Return the TLS of a new connection."""
        return self.tls.files.context.wrap_bio(*args, **options)


class ReloadingTls:
    """The TLS of a server, from files that may change while it runs.

    ``callers`` is whether callers are asked for a certificate, if the options name authorities.
    Connections that are open keep what they began with. Files that cannot be used are logged, once
    for each change, and what was read before stays in use.

    Raises ``TlsFailure`` if the files cannot be used at the start.
    """

    def __init__(self, options: TlsOptions, callers: CallerCertificates = "required") -> None:
        self.options = options
        self.callers: CallerCertificates = callers if options.client_ca is not None else "none"
        self._stamp = stamp_of(options)
        self.files: TlsFiles = read_files(options, self.callers, _context)
        self.context: ssl.SSLContext = _CurrentContext(self)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follow changes of the files within the context."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.check_interval)
            stamp = await asyncio.to_thread(stamp_of, self.options)
            if stamp != self._stamp:
                await self._reload(stamp)

    async def _reload(self, stamp: Stamp) -> None:
        """Use the files as they are now, if they can be used and stay the same meanwhile."""
        cert = self.options.cert
        try:
            files = await asyncio.to_thread(read_files, self.options, self.callers, _context)
        except TlsFailure as failure:
            files = None
            reason = str(failure)
        if await asyncio.to_thread(stamp_of, self.options) != stamp:
            return  # still being written: the next look reads them
        self._stamp = stamp
        if files is None:
            _log.error("the new certificate is not used, the one before still is: %s", reason)
        else:
            self.files = files
            _log.info("the certificate %s is read anew, for new connections", cert)
