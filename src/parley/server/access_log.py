"""The access log, without the credentials, signatures and tokens in addresses.

It has uvicorn's name and form: what is set up for one server holds for the other.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import quote

from starlette.types import Scope

from parley.files.turn_files import SIGNATURE
from parley.security.exposed_secrets import HIDDEN, hide_parameter, without_credentials
from parley.server.endpoint import CALLBACKS, REDIRECT

_FORM = '%s - "%s %s HTTP/%s" %d'

_log = logging.getLogger("uvicorn.access")
_TOKEN = re.compile(rf"(?<={REDIRECT}\?)[^#\s]+|(?<={CALLBACKS}/)(?!oauth\?)[^?#]+")


class HideTokens(logging.Filter):
    """Hides credentials in the records of the access log.

    They are tokens of callbacks, signatures of files, and query parameters such as API keys.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without credentials."""
        if isinstance(record.args, tuple) and any(map(_may_have_credentials, record.args)):
            record.args = tuple(
                without_credentials(_TOKEN.sub(HIDDEN, value)) if isinstance(value, str) else value
                for value in record.args
            )
        return True


def _may_have_credentials(value: object) -> bool:
    """Return whether there may be something to hide: it is in a query, or below a callback."""
    return isinstance(value, str) and ("?" in value or CALLBACKS in value)


def hide_tokens() -> None:
    """Have the access log show no credentials, also that of an app under uvicorn."""
    _log.addFilter(_HIDE_TOKENS)  # once, however often it is added


def log_access() -> None:
    """Have requests logged."""
    _log.setLevel(logging.INFO)
    hide_tokens()


def log_request(scope: Scope, status: int) -> None:
    """Log a request with the status of its answer.

    The record says that it comes from here, which need not be searched for in the stack.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    client = scope["client"]
    address = f"{client[0]}:{client[1]}" if client else ""
    path = quote(scope["path"])
    if scope["query_string"]:
        path = f"{path}?{scope['query_string'].decode('latin-1')}"
    args = (address, scope["method"], path, scope["http_version"], status)
    line = log_request.__code__.co_firstlineno
    _log.handle(
        _log.makeRecord(_log.name, logging.INFO, __file__, line, _FORM, args, None, "log_request")
    )


hide_parameter(SIGNATURE)
_HIDE_TOKENS = HideTokens()
