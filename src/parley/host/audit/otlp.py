"""The audit to a collector of OpenTelemetry: log records over OTLP/HTTP, as JSON."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote

import msgspec

from parley.host.audit.destinations import DestinationFailed, EntriesRejected, shown
from parley.model.distribution import VERSION
from parley.security.outbound import read_start
from parley.store.audit.trail import AuditEntry, fields_of

if TYPE_CHECKING:
    import aiohttp

HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""Headers for the collector, such as ``authorization=Bearer%20abc``: the variable of OTLP itself.
``OTEL_EXPORTER_OTLP_LOGS_HEADERS`` comes before it.
"""

PATH = "/v1/logs"
SECONDS = 30.0
MAX_ANSWER = 64 * 1024
MAX_REASON = 200

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]+")

INFO, WARN = 9, 13
"""Severities of OpenTelemetry."""


class Collector:
    """A collector at a URL. ``headers`` may be secrets."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self._name = name
        self._url = url
        self._headers = dict(headers)
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def at(cls, parts: SplitResult) -> Collector:
        """Return the collector at a URL. Raises ``ValueError``."""
        name = shown(parts)
        if parts.username or parts.password or parts.query:
            raise ValueError(
                f"{name}: credentials for a collector are in the environment variable "
                f"{HEADERS_VARIABLE}, not in its address"
            )
        path = parts.path.rstrip("/") or PATH
        url = parts._replace(scheme=parts.scheme.removeprefix("otlp+"), path=path).geturl()
        given = os.environ.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or os.environ.get(
            HEADERS_VARIABLE, ""
        )
        return cls(name, url, _headers(given))

    @property
    def name(self) -> str:
        """The address."""
        return self._name

    async def send(self, entries: Sequence[AuditEntry]) -> None:
        """Send entries in one request. Raises ``DestinationFailed``.

        OTLP forbids to send again what a collector took in part: that is ``EntriesRejected``.
        """
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        headers = {"Content-Type": "application/json", **self._headers}
        body = msgspec.json.encode(request_of(entries))
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                content = await read_start(answer.content, MAX_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise DestinationFailed(f"{self._name}: {error or type(error).__name__}") from error
        if not 200 <= answer.status < 300:
            raise DestinationFailed(
                f"{self._name} answers {answer.status}",
                retry_after=_seconds(answer.headers.get("Retry-After", "")),
            )
        rejected, why = _rejected(content)
        if rejected:
            raise EntriesRejected(
                f"{self._name} rejects {rejected} of {len(entries)} entries: {why!r}"
            )

    async def close(self) -> None:
        """Disconnect."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def request_of(entries: Sequence[AuditEntry]) -> dict[str, Any]:
    """Return an ``ExportLogsServiceRequest`` with entries."""
    resource = {"service.name": "parley", "service.version": VERSION}
    scope = {"name": "parley.audit", "version": VERSION}
    records = [_record(entry) for entry in entries]
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeLogs": [{"scope": scope, "logRecords": records}],
            }
        ]
    }


def _record(entry: AuditEntry) -> dict[str, Any]:
    fields = fields_of(entry)
    is_failure = entry.kind == "auth.failed" or entry.outcome in ("failed", "denied", "refused")
    attributes = {f"parley.audit.{name}": value for name, value in fields.items()}
    return {
        "timeUnixNano": str(entry.at * 1_000_000),
        "observedTimeUnixNano": str(time.time_ns()),
        "severityNumber": WARN if is_failure else INFO,
        "severityText": "WARN" if is_failure else "INFO",
        "eventName": entry.kind,
        "body": {"stringValue": msgspec.json.encode(fields, order="deterministic").decode()},
        "attributes": _attributes(attributes),
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """Return an ``AnyValue``; a 64-bit integer is text in JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {}


def _headers(text: str) -> dict[str, str]:
    """Return the headers in a text as OTLP has them. Raises ``ValueError``, which quotes none."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    found = {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(found[name]) for name in found):
        raise ValueError(
            f"{HEADERS_VARIABLE} (or that of logs) has headers such as authorization=Bearer%20abc, "
            "separated by commas"
        )
    return found


def _rejected(content: bytes) -> tuple[int, str]:
    """Return how many records an answer rejects, and why."""
    try:
        partial = msgspec.json.decode(content)["partialSuccess"]
        return int(partial["rejectedLogRecords"]), str(partial.get("errorMessage", ""))[:MAX_REASON]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return 0, ""


def _seconds(text: str) -> float:
    return min(float(text), 3600.0) if text.isascii() and text.isdigit() else 0.0
