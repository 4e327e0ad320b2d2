"""From an address to the destination of the audit there."""

from __future__ import annotations

from urllib.parse import urlsplit

from parley.host.audit.destinations import AuditDestination, shown
from parley.host.audit.otlp import Collector
from parley.host.audit.syslog import Syslog

FORMS = (
    "syslog://HOST (UDP), syslog+tcp://HOST, syslog+tls://HOST, otlp+http://HOST:4318 or "
    "otlp+https://HOST"
)


def destination_of(url: str) -> AuditDestination:
    """Return the destination at a URL. Raises ``ValueError``."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a malformed one
    except ValueError:
        raise ValueError(f"the audit goes to {FORMS}; this is no such address") from None
    if not parts.hostname or parts.fragment:
        raise ValueError(f"the audit goes to {FORMS}, not to {shown(parts)!r}")
    if parts.scheme in ("syslog", "syslog+udp", "syslog+tcp", "syslog+tls"):
        return Syslog.at(parts)
    if parts.scheme in ("otlp+http", "otlp+https"):
        return Collector.at(parts)
    raise ValueError(f"the audit goes to {FORMS}, not to {shown(parts)!r}")
