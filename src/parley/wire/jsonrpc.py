"""The JSON-RPC 2.0 envelope around parameters and results (specification §9).

Parameters and results pass through as bytes: ``dialect.JsonRpcCodec`` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from parley.model.errors import A2AError, InvalidAgentResponseError, InvalidRequestError
from parley.model.struct import from_wire
from parley.wire.errors import details_of, error_of
from parley.wire.json import protojson
from parley.wire.json.syntax import Bytes, not_json

Id = msgspec.Raw | bytes | None

R = TypeVar("R")

_ABSENT = msgspec.Raw()
_NULL = msgspec.Raw(b"null")


class RpcRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One call.

    ``id`` is echoed byte for byte; empty when the request has none. ``params`` is empty when they
    are absent or null.
    """

    jsonrpc: Literal["2.0"]
    method: str
    id: msgspec.Raw = _ABSENT
    params: msgspec.Raw = _ABSENT

    @property
    def is_notification(self) -> bool:
        """True if the request must not be answered."""
        return not self.id


class MismatchedId(InvalidAgentResponseError):
    """An answer with the id of another request."""


class _Response(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


class _Answer(msgspec.Struct, Generic[R]):
    jsonrpc: Literal["2.0"]
    result: R
    id: int | None = None
    error: msgspec.Raw = _ABSENT


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


_request = msgspec.json.Decoder(RpcRequest).decode
_response = msgspec.json.Decoder(_Response).decode
_error = msgspec.json.Decoder(_Error).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse_request(body: bytes) -> RpcRequest:
    """Read a request.

    Raises ``JSONParseError`` when the body is not JSON in UTF-8, ``InvalidRequestError`` when it is
    not one JSON-RPC 2.0 request. ``request_id`` then finds the id for the answer.
    """
    try:
        call = _request(body)
    except (ValueError, RecursionError):
        call = _explain(body)
    if call.id:
        call.id = _checked_id(call.id, body)
    if call.params == _NULL:
        call.params = _ABSENT
    return call


def request_id(body: bytes) -> msgspec.Raw | None:
    """Return the id of a request that ``parse_request`` rejected, if it can be read."""
    try:
        found = _members(body).get("id")
        return found and _checked_id(found, body)
    except (ValueError, RecursionError, A2AError):
        return None


def response(id: Id, result: bytes) -> bytes:
    """Return the response to a request, around a result that is already JSON."""
    return b"".join((b'{"jsonrpc":"2.0","id":', id or b"null", b',"result":', result, b"}"))


def error_response(id: Id, error: bytes) -> bytes:
    """Return the error response to a request (§9.5), around an error object that is JSON.

    ``id`` is ``None`` if it could not be read.
    """
    return b"".join((b'{"jsonrpc":"2.0","id":', id or b"null", b',"error":', error, b"}"))


def error_object(error: A2AError) -> bytes:
    """Write the error object of a response: code, message and typed details."""
    return _encode({"code": error.code, "message": error.message, "data": details_of(error)})


def read_error_object(data: Bytes) -> A2AError:
    """Read an error object, as ``wire.errors.error_of`` does.

    Raises ``InvalidAgentResponseError`` when it is not an error object.
    """
    try:
        error = _error(data)
    except (ValueError, RecursionError) as problem:
        raise InvalidAgentResponseError(
            f"the answer is not a JSON-RPC 2.0 response: {problem}"
        ) from None
    given = error.data
    return error_of(
        error.code,
        error.message,
        given if isinstance(given, list) else [given] * (given is not None),
    )


def request(id: int | str, method: str, params: bytes) -> bytes:
    """Return a request, around parameters that are already JSON."""
    return b"".join(
        (
            b'{"jsonrpc":"2.0","id":',
            _encode(id),
            b',"method":',
            _encode(method),
            b',"params":',
            params,
            b"}",
        )
    )


def parse_response(
    body: Bytes,
    read_error: Callable[[Bytes], A2AError] = read_error_object,
    *,
    id: int | None = None,
) -> msgspec.Raw:
    """Return the JSON of the result in a response; null if there is none.

    ``id`` is the id of the request; a response may lack it, or have null or a string instead.
    Raises the error in the response, as ``read_error`` reads it, ``MismatchedId`` for another id,
    and ``InvalidAgentResponseError`` for a body that is not a JSON-RPC 2.0 response.
    """
    try:
        try:
            answer = _response(body)
        except msgspec.ValidationError:
            raise
        except ValueError as problem:
            answer = _response(_repaired(body, problem))
    except (ValueError, RecursionError) as problem:
        raise InvalidAgentResponseError(
            f"the answer is not a JSON-RPC 2.0 response: {problem}"
        ) from None
    answered = bytes(answer.id)
    if id is not None and answered != b"%d" % id and not _matches(answered, id):
        shown = answered[:60].decode(errors="replace")
        raise MismatchedId(f"the answer has the id {shown}, and the request had {id}")
    if answer.error and answer.error != _NULL:
        raise read_error(answer.error)
    return answer.result or _NULL


def read_result(body: Bytes, kind: type[R], id: int | None) -> R | None:
    """Return the result in a response in one pass, as a value of the data model.

    ``None`` for a response with an error or another id, and for a non-canonical one, which need
    ``parse_response`` or a codec. For all other responses both ways give the same result, since
    they use the same decoder.
    """
    try:
        answer: _Answer[R] = _answer_decoder(kind)(body)  # type: ignore[arg-type]
    except (ValueError, RecursionError):
        return None
    return answer.result if answer.id == id and not answer.error else None


@cache
def _answer_decoder(kind: Any) -> Callable[[Bytes], Any]:
    return msgspec.json.Decoder(_Answer[kind], dec_hook=from_wire).decode


def _matches(answered: bytes, id: int) -> bool:
    """Return whether an id in another form, or no id, stands for the id of the request."""
    return answered in (b"", b"null", b'"%d"' % id, b"%d.0" % id)


def _repaired(body: Bytes, problem: ValueError) -> bytes:
    """Return an answer as JSON, without values that JSON cannot contain."""
    try:
        return _encode(protojson.parse_answer(body))
    except A2AError:
        raise problem from None


def _explain(body: bytes) -> RpcRequest:
    """Read a request again, allowing unknown members, or raise the error in it."""
    try:
        members = _members(body)
    except RecursionError:
        raise InvalidRequestError("the request is nested too deeply") from None
    except msgspec.ValidationError:
        _check_syntax(body)
        if bytes(body).lstrip().startswith(b"["):
            raise InvalidRequestError("A2A has no batches: send each request alone") from None
        raise InvalidRequestError("a request must be a JSON object") from None
    except ValueError as error:
        raise not_json(body, error) from None
    if _value(members.get("jsonrpc", _ABSENT)) != "2.0":
        raise InvalidRequestError('jsonrpc must be the string "2.0"')
    method = _value(members.get("method", _ABSENT))
    if not isinstance(method, str):
        _check_syntax(body)
        raise InvalidRequestError("method must be a string: the name of an operation")
    return RpcRequest(
        jsonrpc="2.0",
        method=method,
        id=members.get("id", _ABSENT),
        params=members.get("params", _ABSENT),
    )


def _check_syntax(body: bytes) -> None:
    """Raise the error of a body that is not JSON."""
    try:
        _any(body)
    except RecursionError:
        raise InvalidRequestError("the request is nested too deeply") from None
    except msgspec.ValidationError:  # a number out of range, within valid JSON
        return
    except ValueError as error:
        raise not_json(body, error) from None


def _value(raw: msgspec.Raw) -> Any:
    """Return the value of ``raw``, ``None`` when it cannot be read."""
    try:
        return _any(raw)
    except (ValueError, RecursionError):
        return None


def _checked_id(raw: msgspec.Raw, body: bytes) -> msgspec.Raw:
    # A copy: a view would keep the whole body alive for as long as a stream lasts.
    id = bytes(raw)
    if id.isdigit() or id == b"null" or (id.startswith(b'"') and id.isascii()):
        return msgspec.Raw(id)
    value = _value(raw)
    if isinstance(value, str | int) and not isinstance(value, bool):
        return msgspec.Raw(id)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise not_json(body, error) from None
    raise InvalidRequestError("id must be a string, an integer or null")
