"""Answers are read without the fields that are wrong in them; requests are not."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, OPERATIONS
from parley.model.requests import Empty, SendMessageResponse, StreamResponse
from parley.model.service import StreamItem
from parley.wire import versions
from tests.strategies import value_of

CODECS = {
    f"{binding} {version}": getattr(versions.dialect(version), binding)
    for binding in ("jsonrpc", "http_json")
    for version in versions.SPOKEN
}
ANSWERS = [each for each in OPERATIONS if each.response is not Empty and not each.extension]
WRONG = [None, 5, -1.5, True, "", "nonsense", [], [5], [None], {}, {"x": 1}, [[]]]


def read(codec: Any, name: str, members: Any) -> Any:
    data = json.dumps(members).encode()
    if BY_NAME[name].streaming:
        return codec.read_event(data)
    return codec.read_result(BY_NAME[name], data)


def written(codec: Any, name: str, value: Any) -> Any:
    if BY_NAME[name].streaming:
        return json.loads(codec.write_event(StreamItem(value)))
    return json.loads(codec.write_result(BY_NAME[name], value))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, but none within free JSON: nothing there can be wrong."""
    found = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if key in ("metadata", "params", "header", "data"):
            found.append((*path, key))
            continue
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
    return found


def break_at(value: Any, path: tuple[Any, ...], by: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    if by is ...:
        del value[path[-1]]
    else:
        value[path[-1]] = by


def check_beside(before: Any, after: Any, path: tuple[Any, ...]) -> None:
    """Everything that is not at ``path`` is as it was; an item of a list may be gone with it."""
    key, *rest = path
    if isinstance(before, list):
        if len(after) == len(before):
            others = [each for place, each in enumerate(after) if place != key]
            if rest:
                check_beside(before[key], after[key], tuple(rest))
        else:
            # A message without parts says nothing; an object of one member needs that.
            said = before[key] if rest and isinstance(before[key], dict) else {}
            assert len(said) <= 1 or rest in (["parts"], ["content"]), path
            others = after
        assert others == [each for place, each in enumerate(before) if place != key], path
        return
    if before.get("kind") in ("text", "data", "file") or key in ("flows", "scheme"):
        after = {**before, **after} if after.keys() <= before.keys() else after
    follows = {key, "final"}  # which follows from the state, as the name of a webhook from its id
    if key == "pushNotificationConfig":
        follows.add("name")
    assert {k: v for k, v in before.items() if k not in follows} == {
        k: v for k, v in after.items() if k not in follows and (k in before or v)
    }, (path, before, after)
    if rest and key in after and isinstance(before[key], dict | list):
        assert isinstance(after[key], type(before[key]))
        check_beside(before[key], after[key], tuple(rest))


@pytest.mark.parametrize("name", [each.name for each in ANSWERS])
@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40)
@given(data=st.data())
def test_one_wrong_field_takes_nothing_else_with_it(codec: str, name: str, data: Any) -> None:
    spoken = CODECS[codec]
    response = BY_NAME[name].response
    value = data.draw(value_of(response))
    if isinstance(value, SendMessageResponse | StreamResponse):
        value = value.payload
    members = written(spoken, name, value)
    try:
        assume(written(spoken, name, read(spoken, name, members)) == members)
    except (A2AError, ValueError):  # a value that the version cannot say
        assume(False)
    # What an answer is must be told by what is left of its outermost object.
    wrapped = isinstance(members, dict) and response in (SendMessageResponse, StreamResponse)
    outer = 1 if wrapped and len(members) == 1 else 0
    found = [path for path in places(members) if len(path) > outer]
    if not outer and isinstance(members, dict) and len(members) == 1:
        found = [path for path in found if len(path) > 1]
    assume(found)
    path = data.draw(st.sampled_from(found))
    by = data.draw(st.sampled_from([..., *WRONG]))
    broken = deepcopy(members)
    break_at(broken, path, by)
    got = read(spoken, name, broken)
    if "securitySchemes" not in path and "supportedInterfaces" not in path:
        check_beside(members, written(spoken, name, got), path)
