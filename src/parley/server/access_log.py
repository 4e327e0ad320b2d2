"""The access log of uvicorn, without the tokens of addresses: whoever reads it cannot call them."""

from __future__ import annotations

import logging
import re

from parley.files.turn_files import SIGNATURE
from parley.server.endpoint import CALLBACKS, REDIRECT

_TOKEN = re.compile(
    rf"(?<={REDIRECT}\?)[^#\s]+|(?<={CALLBACKS}/)(?!oauth\?)[^?#]+|(?<=[?&]{SIGNATURE}=)[^&#\s]+"
)


class HideTokens(logging.Filter):
    """Hides tokens of callbacks and signatures of files in the records of uvicorn's access log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without tokens."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                _TOKEN.sub("...", value) if isinstance(value, str) else value
                for value in record.args
            )
        return True


def log_access() -> None:
    """Have uvicorn log requests."""
    logger = logging.getLogger("uvicorn.access")
    logger.setLevel(logging.INFO)
    logger.addFilter(_HIDE_TOKENS)  # once, however often it is added


_HIDE_TOKENS = HideTokens()
