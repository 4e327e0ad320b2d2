"""Fetches files at addresses that callers name, through the egress guard."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec.structs import replace

from parley.client.bindings.http import HttpTransport
from parley.client.files.download import Download, FetchRoute, Limits
from parley.client.files.stream import FileFacts
from parley.client.retry import Retry
from parley.security.egress import Egress, lookup_caller

MAX_BYTES = 5 * 1024 * 1024 * 1024
"""The size of a file, unless the server has another limit or the author gives one."""

_RETRY = Retry(calls=2, streams=8)


class RemoteFiles:
    """Fetches files from addresses that ``egress`` allows: without credentials and proxies.

    Redirects are checked like the first address. A download fails when its server sends nothing for
    ``idle`` seconds, or, after ``grace`` seconds of waiting, less than ``min_rate`` bytes a second.
    One for all turns of a host; close it at the end.
    """

    def __init__(
        self,
        egress: Egress | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        retry: Retry = _RETRY,
        idle: float = 30.0,
        min_rate: int = 1024,
        grace: float = 60.0,
    ) -> None:
        self.max_bytes = max_bytes
        self._egress = egress or Egress(option="allow_private_files")
        self._retry = retry
        self._limits = Limits(idle=idle, min_rate=min_rate, grace=grace)
        self._http: HttpTransport | None = None

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def fetch(
        self, url: str, facts: FileFacts, *, limit: int, caller: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes at an address, on behalf of a caller. Raises ``ClientError``."""
        lookup_caller.set(caller)
        limits = replace(self._limits, max_bytes=limit)
        download = Download(url, facts, route=self._route, retry=self._retry, limits=limits)
        chunks = download.chunks()
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    def _route(self, url: str) -> FetchRoute:
        if self._http is None or self._http.closed:
            self._http = HttpTransport(egress=self._egress, bound_to_turns=False)
        return FetchRoute(self._http, url, {}, is_own=False)
