"""Read the trace that a request belongs to from its headers (W3C Trace Context)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley.model.service import NO_TRACE, TraceContext

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
    """Return the members of a list that is valid, those on the left first; else nothing."""
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
