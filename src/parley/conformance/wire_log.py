"""The exchanges of a run, as they were on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from parley.client.bindings.http import Body, HttpTransport, OpenResponse, redacted

SHOWN = 700
"""The characters of a body that evidence shows."""


class WireExchange(msgspec.Struct, kw_only=True):
    """A request over HTTP and what came back."""

    method: str
    url: str
    sent: bytes = b""
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body as JSON, ``None`` if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def media_type(self) -> str:
        """The media type of the answer, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def __str__(self) -> str:
        lines = [f"{self.method} {redacted(self.url)}"]
        if self.sent:
            lines.append(_short(self.sent))
        lines.append(f"{self.status or 'no answer'} {self.headers.get('content-type', '')}".strip())
        if self.body:
            lines.append(_short(self.body))
        return "\n".join(lines)


class LoggedTransport(HttpTransport):
    """An HTTP transport that keeps its latest exchanges."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last: WireExchange | None = None

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[OpenResponse]:
        """Send a request and yield the response, and keep both."""
        sent = body if isinstance(body, bytes) else b""
        exchange = self.last = WireExchange(method=method, url=url, sent=sent)
        async with super().open(method, url, headers, body, timeout=timeout, idle=idle) as answer:
            exchange.status = answer.status
            exchange.headers = dict(answer.headers)
            yield _Logged(answer, exchange)


class _Logged(OpenResponse):
    def __init__(self, real: OpenResponse, exchange: WireExchange) -> None:
        super().__init__(real.status, real.url, real.headers.items(), limit=real._limit)
        self._real = real
        self._exchange = exchange

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        async for chunk in self._real.chunks():
            self._exchange.body += chunk
            yield chunk


def _short(data: bytes) -> str:
    text = data[: 4 * SHOWN].decode("utf-8", "replace")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(data):,} bytes)"
