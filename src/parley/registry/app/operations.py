"""An operation of the REST interface: one row, from which routes and the OpenAPI document are made.

Other parts of the registry give rows of their own (``Registry(operations=...)`` puts them beside
these). A handler gets a ``RestRequest`` and returns a ``RestAnswer``, or raises an ``A2AError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from parley.model.errors import InvalidParamsError
from parley.model.service import ANONYMOUS, Caller
from parley.registry.index.selections import Viewer
from parley.wire.json.syntax import without_bom

MAX_BODY = 64 * 1024

T = TypeVar("T")

ERROR_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "INVALID_ARGUMENT",
    409: "CONFLICT",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RATE_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "UNAVAILABLE",
}
"""The code of each status (ARD's OpenAPI document, and ours where it names none)."""


class Needs(Enum):
    """Who may use an operation."""

    SEARCHER = "searcher"
    """Whoever may search: everyone, unless the registry requires credentials for that."""
    CALLER = "caller"
    """A caller who proved who it is. Nothing is published anonymously."""
    OPERATOR = "operator"
    """A caller with the scope ``registry:operate``."""


class RestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose caller is known.

    ``path`` has the parameters of the path, ``query`` those behind it, each at most once.
    ``headers`` have names in lower case. ``base`` is the address of the registry as its caller sees
    it, without a trailing slash, and ``address`` that of the caller.
    """

    path: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    caller: Caller = ANONYMOUS
    viewer: Viewer = Viewer()
    base: str = ""
    address: str = ""

    def read(self, type: type[T], what: str = "the request") -> T:
        """Return the body, read as a type that forbids members it does not know.

        Raises ``InvalidParamsError``.
        """
        try:
            return msgspec.json.decode(without_bom(self.body), type=type)
        except msgspec.ValidationError as error:
            raise InvalidParamsError(f"{what} is not as it should be: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidParamsError(f"{what} is a JSON object; this body is no JSON") from None

    def number(self, name: str, default: int, *, most: int) -> int:
        """Return a whole number of the query, from 1 to ``most``. Raises ``InvalidParamsError``."""
        text = self.query.get(name)
        if text is None:
            return default
        digits = text if text.isascii() and text.isdigit() and len(text) <= 12 else "0"
        if not 1 <= int(digits) <= most:
            raise InvalidParamsError(
                f"{name} is a whole number from 1 to {most}, not {text[:40]!r}"
            )
        return int(digits)


class RestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. ``body`` is written as JSON, unless it is bytes of ``media_type``.

    With ``max_age`` (seconds) it has an ETag, and callers may keep it; without, nobody keeps it.
    """

    body: Any = None
    status: int = 200
    media_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    max_age: int | None = None


Handler = Callable[[RestRequest], Awaitable[RestAnswer]]


class RestOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation.

    ``name`` is the operationId, and what limits are ``on``. ``path`` is below the registry, such as
    ``/agents/{identifier}``: a parameter is a whole segment. ``parameters`` are those of the query
    that it takes, by name, with their JSON Schema; ``request`` and ``response`` are the schemas of
    the bodies. ``schemas`` are the components they refer to. An operation with ``request`` takes a
    JSON body of at most ``max_body`` bytes.
    """

    name: str
    method: str
    path: str
    handler: Handler
    summary: str
    description: str = ""
    needs: Needs = Needs.SEARCHER
    parameters: Mapping[str, Mapping[str, Any]] = {}
    path_parameters: Mapping[str, Mapping[str, Any]] = {}
    request: Mapping[str, Any] | None = None
    response: Mapping[str, Any] | None = None
    responses: Mapping[int, str] = {}
    """Further statuses with what they mean: 201, 404, 409."""
    schemas: Mapping[str, Any] = {}
    media_type: str = "application/json"
    max_body: int = MAX_BODY
    is_documented: bool = True


Operation = RestOperation
"""The name that rows are written with."""
