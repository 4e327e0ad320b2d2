"""The access log of uvicorn, without the credentials, signatures and tokens in addresses."""

from __future__ import annotations

import logging
import re

from parley.files.turn_files import SIGNATURE
from parley.security.credentials.redaction import HIDDEN, hide_parameter, without_credentials
from parley.server.endpoint import CALLBACKS, REDIRECT

_TOKEN = re.compile(rf"(?<={REDIRECT}\?)[^#\s]+|(?<={CALLBACKS}/)(?!oauth\?)[^?#]+")


class HideTokens(logging.Filter):
    """Hides credentials in the records of uvicorn's access log.

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
    """Have uvicorn's access log show no credentials, whoever runs uvicorn."""
    logging.getLogger("uvicorn.access").addFilter(_HIDE_TOKENS)  # once, however often it is added


def log_access() -> None:
    """Have uvicorn log requests."""
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    hide_tokens()


hide_parameter(SIGNATURE)
_HIDE_TOKENS = HideTokens()
