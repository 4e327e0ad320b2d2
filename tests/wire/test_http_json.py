"""HTTP+JSON of version 1.0: what is written is what is read, whatever it holds."""

import contextlib
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parley.model.errors import (
    ERRORS,
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidParamsError,
)
from parley.model.operations import BY_NAME, OPERATIONS, Empty, SendMessageResponse, StreamResponse
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import TaskState
from parley.server.http.paths import Paths, segments_of
from parley.wire import versions
from parley.wire.v1_0.http_json import read_query
from parley.wire.versions import Route
from tests.kit.strategies import value_of

CODEC = versions.dialect("1.0").http_json
_NO_IDS = ("", ".", "..")
PATHS = Paths([("1.0", route) for route in CODEC.routes])


def sent(operation: Any, request: A2AStruct) -> Any:
    """Return a request as it arrives, after it was written, sent and read."""
    verb, path, query, body = CODEC.write_request(operation, request)
    scope = {"path": "", "raw_path": path.encode("ascii")}
    # A server gives the path decoded, and as it was sent.
    scope["path"] = unquote(path, errors="strict")
    found = PATHS.find(verb, segments_of(scope))
    assert found.target.route.operation is operation
    tenant = found.fields.pop("tenant", "")
    parameters = parse_qsl(query, keep_blank_values=True)
    read = CODEC.read_request(found.target.route, found.fields, parameters, body or b"")
    return tenant, read


def is_ambiguous(operation: Any, request: Any) -> bool:
    """Whether an id looks like an action, which then counts first."""
    id = getattr(request, "id", "") if operation.path.endswith("{id}") else ""
    return id.endswith((":cancel", ":subscribe")) and id.rpartition(":")[0] != ""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_a_request_is_read_as_it_was_written(operation, data):
    request = data.draw(value_of(operation.request))
    assume(not is_ambiguous(operation, request))
    fields = [name for name in ("id", "task_id") if f"{{{name}}}" in operation.path]
    if request.tenant in (".", "..") or any(getattr(request, f) in _NO_IDS for f in fields):
        with pytest.raises(InvalidParamsError, match="cannot be part of a path"):
            sent(operation, request)
        return
    tenant, read = sent(operation, request)
    assert (tenant or read.tenant) == request.tenant
    read = msgspec.structs.replace(read, tenant="")
    expected = type(request)(
        **{f: getattr(request, f) for f in request.__struct_fields__ if f != "tenant"}
    )
    assert read == expected


@pytest.mark.parametrize("tenant", ["tasks", "v1"])
@pytest.mark.parametrize("name", ["GetExtendedAgentCard", "ListTasks"])
def test_a_tenant_with_the_name_of_a_path_does_not_lead_astray(name, tenant):
    operation = BY_NAME[name]
    request = operation.request(tenant=tenant)
    assert sent(operation, request) == ("", request)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_an_answer_is_read_as_it_was_written(operation, data):
    answer = data.draw(value_of(operation.response))
    if isinstance(answer, StreamResponse):
        assert CODEC.read_event(CODEC.write_event(StreamItem(answer.payload))) == answer.payload
        return
    if isinstance(answer, SendMessageResponse):
        answer = answer.payload
    read = CODEC.read_result(operation, CODEC.write_result(operation, answer))
    assert read == answer or isinstance(answer, Empty)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_is_read_as_it_was_written(kind):
    error = kind(
        "words",
        metadata={"taskId": "t"},
        violations=(FieldViolation("id", "wrong"),),
        details=({"@type": "type.example/More", "more": 1},),
        retry_after=1.5,
    )
    read = CODEC.read_error(kind.http_status, CODEC.write_error(error))
    assert type(read) is kind
    for name in ("message", "metadata", "violations", "details", "retry_after"):
        assert getattr(read, name) == getattr(error, name)


@given(status=st.integers(300, 599), body=st.binary(max_size=80))
def test_reading_an_error_never_fails_otherwise(status, body):
    with contextlib.suppress(InvalidAgentResponseError):
        assert isinstance(CODEC.read_error(status, body), A2AError)


class Filter(A2AStruct, frozen=True, kw_only=True):
    """What a method of an extension may ask for."""

    tags: tuple[str, ...] = ()
    states: tuple[TaskState, ...] = ()
    only_open: bool = False
    more: dict[str, Any] | None = None


@pytest.mark.parametrize("query", ["tags=a&tags=b", "tags=a,b"])
def test_a_list_is_written_with_commas_or_by_repeating_it(query):
    assert read_query(Filter, parse_qsl(query)) == ({"tags": ["a", "b"]}, [])


def test_an_object_in_a_query_is_refused_by_its_name():
    _, wrong = read_query(Filter, [("more", "{}"), ("only_open", "true")])
    assert [violation.field for violation in wrong] == ["more"]


def test_every_wrong_item_of_a_list_is_named():
    operation = type(OPERATIONS[0])(
        name="x", method="", request=Filter, response=Empty, verb="GET", path="/x"
    )
    with pytest.raises(InvalidParamsError) as raised:
        CODEC.read_request(
            Route("GET", "/x", operation), {}, [("states", "A,TASK_STATE_WORKING,B")], b""
        )
    assert [v.field for v in raised.value.violations] == ["states[0]", "states[2]"]
