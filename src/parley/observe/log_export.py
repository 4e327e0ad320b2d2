"""Log records by OTLP."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parley.observe.export import sent_in_time
from parley.observe.logs import ContextFields

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.sdk.resources import Resource

    from parley.observe.export import Collector, Flush

SIGNAL = "logs"

_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "trace_id", "span_id"}
"""The attributes of every record; the others are its fields."""


def start_logs(collector: Collector, resource: Resource, mask: Callable[[str], str]) -> Flush:
    """Send all records of this process to a collector from now on. Return what ends this."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPLogExporter(endpoint=collector.endpoint(SIGNAL))
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    handler = ExportedLogs(provider, mask)
    handler.addFilter(ContextFields())
    root = logging.getLogger()
    root.addHandler(handler)

    async def end() -> None:
        root.removeHandler(handler)
        await sent_in_time(provider.shutdown)

    return end


class ExportedLogs(logging.Handler):
    """Sends records to a provider of OpenTelemetry, with their fields and their trace.

    ``mask`` removes secrets from texts. Records of OpenTelemetry itself are not sent: an exporter
    that fails would log about its own records.
    """

    def __init__(self, provider: LoggerProvider, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._provider = provider
        self._mask = mask

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        if record.name.partition(".")[0] in ("opentelemetry", "urllib3", "requests"):
            return
        try:
            self._emit(record)
        except Exception:
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber

        trace, span = (int(getattr(record, name, "0"), 16) for name in ("trace_id", "span_id"))
        severity = SeverityNumber(min(21, 5 + 4 * ((record.levelno - 10) // 10)))
        attributes = {
            name: self._plain(value) for name, value in vars(record).items() if name not in _OWN
        }
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            stack = "".join(traceback.format_exception(*record.exc_info))
            attributes["exception.stacktrace"] = self._mask(stack)
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                trace_id=trace or None,
                span_id=span or None,
                severity_number=severity,
                severity_text=record.levelname,
                body=self._mask(record.getMessage()),
                attributes=attributes,
            )
        )

    def _plain(self, value: Any) -> Any:
        return value if isinstance(value, bool | int | float) else self._mask(str(value))
