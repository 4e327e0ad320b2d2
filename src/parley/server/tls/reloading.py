"""TLS that follows its files: new connections get the certificate that is there now."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

from parley.server.tls.files import Stamp, TlsFailure, TlsFiles, new_context, read_files, stamp_of
from parley.server.tls.options import CallerCertificates, TlsOptions

MAX_HANDSHAKES = 5000
HANDSHAKE_SECONDS = 60.0
"""How long an event loop waits for a handshake unless it is told otherwise."""

_log = logging.getLogger("parley.server")


class Handshakes:
    """Counts the handshakes under way, and refuses one more than ``limit``.

    One that has taken ``seconds`` is over: the event loop ends it then. One whose object is gone is
    over too: its connection was closed, which ends no handshake.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._begun: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()

    def begin(self, handshake: object) -> None:
        """Count a handshake. Raises ``ssl.SSLError`` if there are too many."""
        now = time.monotonic()
        while (first := next(iter(self._begun.items()), None)) is not None:
            if first[1] > now - self._seconds:
                break
            self._begun.pop(first[0], None)
        if len(self._begun) >= self._limit:
            gc.collect(1)  # asyncio leaves what was closed in a reference cycle
        if len(self._begun) >= self._limit:
            raise ssl.SSLError("too many handshakes at a time")
        self._begun[handshake] = now

    def end(self, handshake: object) -> None:
        """Count a handshake no more."""
        self._begun.pop(handshake, None)


class _Handshake:
    """A handshake that is counted as long as its connection refers to it."""


class _Connection(ssl.SSLObject):
    """The TLS of one connection: its handshake is counted, and its failure logged."""

    handshakes: ClassVar[Handshakes]
    _handshake: _Handshake | None = None

    def do_handshake(self) -> None:
        """Do the next step of the handshake."""
        try:
            if self._handshake is None:
                self._handshake = _Handshake()
                self.handshakes.begin(self._handshake)
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.handshakes.end(self._handshake)
            reason = getattr(error, "reason", "") or str(error)
            is_about_caller = isinstance(error, ssl.SSLCertVerificationError) or (
                "PEER_DID_NOT_RETURN" in reason
            )
            level = logging.INFO if is_about_caller else logging.DEBUG
            why = getattr(error, "verify_message", "") or reason
            _log.log(level, "a TLS handshake failed: %s", why)
            raise
        self.handshakes.end(self._handshake)


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

    ``handshakes`` bounds how many are under way over HTTP; gRPC bounds its own.

    Raises ``TlsFailure`` if the files cannot be used at the start.
    """

    def __init__(
        self,
        options: TlsOptions,
        callers: CallerCertificates = "required",
        *,
        handshakes: Handshakes | None = None,
    ) -> None:
        handshakes = handshakes or Handshakes(MAX_HANDSHAKES, HANDSHAKE_SECONDS)
        self._connection = type("Connection", (_Connection,), {"handshakes": handshakes})
        self.options = options
        self.callers: CallerCertificates = callers if options.client_ca is not None else "none"
        self._stamp = stamp_of(options)
        self.files: TlsFiles = read_files(options, self.callers, self._context)
        self.context: ssl.SSLContext = _CurrentContext(self)

    def _context(self) -> ssl.SSLContext:
        context = new_context()
        context.sslobject_class = self._connection
        return context

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
            files = await asyncio.to_thread(read_files, self.options, self.callers, self._context)
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
