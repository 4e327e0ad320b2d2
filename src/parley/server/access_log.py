"""The access log, without the credentials, signatures and tokens in addresses.

It has uvicorn's name and form: what is set up for one server holds for the other.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import quote

from starlette.types import Scope

from parley.files.turn_files import SIGNATURE
from parley.security.credentials.redaction import HIDDEN, hide_parameter, without_credentials
from parley.server.endpoint import CALLBACKS, REDIRECT

_log = logging.getLogger("uvicorn.access")
_TOKEN = re.compile(rf"(?<={REDIRECT}\?)[^#\s]+|(?<={CALLBACKS}/)(?!oauth\?)[^?#]+")


class HideTokens(logging.Filter):
    """Hides credentials in the records of the access log.

    They are tokens of callbacks, signatures of files, and query parameters such as API keys.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without credentials."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                without_credentials(_TOKEN.sub(HIDDEN, value)) if isinstance(value, str) else value
                for value in record.args
            )
        return True


def hide_tokens() -> None:
    """Have the access log show no credentials, also that of an app under uvicorn."""
    _log.addFilter(_HIDE_TOKENS)  # once, however often it is added


def log_access() -> None:
    """Have requests logged."""
    _log.setLevel(logging.INFO)
    hide_tokens()


def log_request(scope: Scope, status: int) -> None:
    """Log a request with the status of its answer."""
    client = scope["client"]
    path = quote(scope["path"])
    if scope["query_string"]:
        path = f"{path}?{scope['query_string'].decode('latin-1')}"
    _log.info(
        '%s - "%s %s HTTP/%s" %d',
        f"{client[0]}:{client[1]}" if client else "",
        scope["method"],
        path,
        scope["http_version"],
        status,
    )


hide_parameter(SIGNATURE)
_HIDE_TOKENS = HideTokens()
