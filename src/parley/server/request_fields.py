"""Fields of a request that all bindings read in one way: ids, the caller's names, the trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from parley.model.errors import FieldViolation, InvalidParamsError, UnauthenticatedError
from parley.model.ids import RIGHT_ID, RIGHT_NAME, may_be_id, may_be_name
from parley.model.operations import GetTaskRequest, SendMessageRequest
from parley.model.service import NO_TRACE, Caller, TraceContext

_REQUEST_IDS = (
    ("id", "id"),
    ("task_id", "taskId"),
    ("context_id", "contextId"),
    ("tenant", "tenant"),
)
_MESSAGE_IDS = (
    ("message_id", "message.messageId"),
    ("context_id", "message.contextId"),
    ("task_id", "message.taskId"),
)

MAX_ACTORS = 32
"""The most actors of a caller: they are stored with each of its messages."""

MAX_SCOPE_CHARACTERS = 16 * 1024
"""The most characters of all scopes of a caller, which are stored too."""


def check_ids(request: Any) -> None:
    """Raise ``InvalidParamsError`` for ids that no store could keep.

    Requests of extensions are checked too where their fields have the same names.
    """
    if type(request) is SendMessageRequest:
        message = request.message
        ids = request.tenant + message.message_id + message.context_id + message.task_id
        if not message.reference_task_ids and may_be_id(ids):
            return  # valid together, so each is: the common case costs one check
    elif type(request) is GetTaskRequest and may_be_id(request.tenant + request.id):
        return
    violations = tuple([FieldViolation(field, RIGHT_ID) for field in _invalid_fields(request)])
    if violations:
        fields = ", ".join([violation.field for violation in violations])
        raise InvalidParamsError(f"{fields}: an id has {RIGHT_ID}", violations=violations)


def check_caller(caller: Caller) -> None:
    """Raise ``UnauthenticatedError`` for a caller whose id or issuer is ambiguous or invalid."""
    if not may_be_name(caller.id):
        raise UnauthenticatedError(f"the id under which the caller is known has {RIGHT_NAME}")
    if caller.client or caller.actors or caller.scopes:
        _check_client(caller)
    if not caller.issuer:
        return
    if not may_be_name(caller.issuer):
        raise UnauthenticatedError(f"the issuer of the caller's id has {RIGHT_NAME}")
    if not caller.id:
        raise UnauthenticatedError("the caller has an issuer and no id: an issuer vouches for one")


def _check_client(caller: Caller) -> None:
    if caller.client and not caller.id:
        raise UnauthenticatedError(
            "the caller has a client and no id: without a user, the id is that of the client"
        )
    if not may_be_name(caller.client) or not all(may_be_name(each) for each in caller.actors):
        raise UnauthenticatedError(f"the client and the actors of a caller have {RIGHT_NAME}")
    if len(caller.actors) > MAX_ACTORS:
        raise UnauthenticatedError(f"a caller has at most {MAX_ACTORS} actors")
    size = sum(len(scope) + 1 for scope in caller.scopes)
    if size > MAX_SCOPE_CHARACTERS:
        raise UnauthenticatedError(
            f"the scopes of a caller have at most {MAX_SCOPE_CHARACTERS} characters"
        )


def _invalid_fields(request: Any) -> Iterator[str]:
    for name, field in _REQUEST_IDS:
        value = getattr(request, name, "")
        if value and isinstance(value, str) and not may_be_id(value):
            yield field
    if not isinstance(request, SendMessageRequest):
        return
    message = request.message
    for name, field in _MESSAGE_IDS:
        if not may_be_id(getattr(message, name)):
            yield field
    for n, task_id in enumerate(message.reference_task_ids):
        if not may_be_id(task_id):
            yield f"message.referenceTaskIds[{n}]"
            break  # there may be a million of them


# -- the trace (W3C Trace Context) ------------------------------------------------------------

MAX_TRACEPARENT = 256
"""The longest ``traceparent`` that is kept. Version 00 has 55 characters."""

MAX_TRACESTATE = 512
"""The longest ``tracestate`` that is kept, in characters. Of a longer one, members are dropped."""

MAX_MEMBERS = 32
LONG_MEMBER = 128

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<parent_id>[0-9a-f]{16})-[0-9a-f]{2}"
    r"(?P<more>-[\x21-\x7e]*)?"
)
_KEY = r"(?:[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}|[a-z][a-z0-9_\-*/]{0,255})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"({_KEY})={_VALUE}")


def read_trace(parents: Sequence[str], states: Sequence[str] = ()) -> TraceContext:
    """Return the trace in the ``traceparent`` and ``tracestate`` headers of a request.

    An invalid ``traceparent``, and more than one, are no trace. An invalid ``tracestate`` is
    dropped; several are one list.
    """
    if len(parents) != 1 or not _is_traceparent(parents[0].strip(" \t")):
        return NO_TRACE
    return TraceContext(traceparent=parents[0].strip(" \t"), tracestate=_tracestate(states))


def _is_traceparent(text: str) -> bool:
    if len(text) > MAX_TRACEPARENT or (found := _TRACEPARENT.fullmatch(text)) is None:
        return False
    if found["version"] == "ff" or (found["version"] == "00" and found["more"] is not None):
        return False
    return found["trace_id"].strip("0") != "" and found["parent_id"].strip("0") != ""


def _tracestate(headers: Sequence[str]) -> str:
    """Return the members of a valid list, cut at the end to fit; else nothing."""
    if sum(map(len, headers)) > 64 * MAX_TRACESTATE:
        return ""
    members = [member.strip(" \t") for header in headers for member in header.split(",")]
    members = [member for member in members if member]
    if len(members) > MAX_MEMBERS:
        return ""
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {each[1] for each in found if each is not None}
    if len(keys) < len(members):  # one is invalid, or a key is there twice
        return ""
    if len(",".join(members)) > MAX_TRACESTATE:  # the long ones go first, then the last
        members = [member for member in members if len(member) <= LONG_MEMBER]
    while len(text := ",".join(members)) > MAX_TRACESTATE:
        members.pop()
    return text
