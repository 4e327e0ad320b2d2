"""From what the rooms below refuse to what the REST interface answers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from parley.registry.app.operations import RestAnswer, RestError, RestRequest
from parley.registry.publishing.refusals import Refused

_Bound = Callable[[Any, RestRequest], Awaitable[RestAnswer]]


def answering_refusals(handler: _Bound) -> _Bound:
    """Return a handler whose refusals are answers."""

    @wraps(handler)
    async def handle(self: Any, request: RestRequest) -> RestAnswer:
        try:
            return await handler(self, request)
        except Refused as error:
            headers: tuple[tuple[bytes, bytes], ...] = ()
            if error.retry_after is not None:
                headers = ((b"retry-after", str(math.ceil(error.retry_after)).encode()),)
            raise RestError(error.status, str(error), headers) from None

    return handle
