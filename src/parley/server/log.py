"""The access log, without credentials, signatures and tokens; and unexpected exceptions.

The access log has uvicorn's name and format, so its configuration works for both servers. For an
unexpected exception the log has the details, and the caller a reference to them.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import quote

from starlette.types import Scope

from parley.files.turn_files import SIGNATURE
from parley.model.errors import A2AError, InternalError
from parley.model.ids import log_incident
from parley.security.exposed_secrets import HIDDEN, hide_parameter, without_credentials
from parley.security.sealing import CALLBACKS, REDIRECT

_FORM = '%s - "%s %s HTTP/%s" %d'

_access = logging.getLogger("uvicorn.access")
_log = logging.getLogger("parley.server")
_TOKEN = re.compile(rf"(?<={REDIRECT}\?)[^#\s]+|(?<={CALLBACKS}/)(?!oauth\?)[^?#]+")


class HideTokens(logging.Filter):
    """Hides credentials in the records of the access log.

    They are tokens of callbacks, signatures of files, and query parameters such as API keys.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record, and remove credentials from it."""
        if isinstance(record.args, tuple) and any(map(_may_have_credentials, record.args)):
            record.args = tuple(
                without_credentials(_TOKEN.sub(HIDDEN, value)) if isinstance(value, str) else value
                for value in record.args
            )
        return True


def _may_have_credentials(value: object) -> bool:
    """Return whether there may be credentials: in a query, or below a callback path."""
    return isinstance(value, str) and ("?" in value or CALLBACKS in value)


def hide_tokens() -> None:
    """Hide credentials in the access log, under uvicorn too."""
    _access.addFilter(_HIDE_TOKENS)  # added only once by logging


def log_access() -> None:
    """Have requests logged."""
    _access.setLevel(logging.INFO)
    hide_tokens()


def log_request(scope: Scope, status: int) -> None:
    """Log a request with the status of its answer.

    The record has a fixed origin, so that logging does not search the stack for it.
    """
    if not _access.isEnabledFor(logging.INFO):
        return
    client = scope["client"]
    address = f"{client[0]}:{client[1]}" if client else ""
    path = quote(scope["path"])
    if scope["query_string"]:
        path = f"{path}?{scope['query_string'].decode('latin-1')}"
    args = (address, scope["method"], path, scope["http_version"], status)
    line = log_request.__code__.co_firstlineno
    _access.handle(
        _access.makeRecord(
            _access.name, logging.INFO, __file__, line, _FORM, args, None, "log_request"
        )
    )


def failure_of(error: BaseException, doing: str) -> A2AError:
    """Return the caller's error for an exception, which is being handled.

    An unexpected exception is logged with its traceback, as an incident; ``doing`` names the work.
    """
    if isinstance(error, A2AError):
        return error
    reference = log_incident(_log, doing)
    return InternalError(
        f"the server failed; its log says why under the reference {reference}",
        metadata={"reference": reference},
    )


hide_parameter(SIGNATURE)
_HIDE_TOKENS = HideTokens()
