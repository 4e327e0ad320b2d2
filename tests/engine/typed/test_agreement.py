"""The schema of a type and the reader of its values agree, whatever the type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from parley.engine.typed.value_type import ValueType, is_model
from parley.engine.typed.violations import Mismatch
from tests.engine.typed.kinds import JUNK, Record, records

MAKERS = ("dataclass", "struct", "strict struct", "TypedDict", "pydantic")

COUNT = settings(max_examples=150, deadline=None)


def accepts(kind: ValueType, data: Any) -> bool:
    try:
        kind.read(data)
    except Mismatch:
        return False
    return True


@COUNT
@given(st.data(), records(MAKERS))
def test_the_schema_accepts_what_the_reader_accepts(data: st.DataObject, record: Record) -> None:
    kind = ValueType(record.kind)
    Draft202012Validator.check_schema(kind.schema)
    validator = Draft202012Validator(
        kind.schema, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    fitting = data.draw(record.fitting)
    assert validator.is_valid(fitting)
    assert accepts(kind, fitting)
    changed = dict(fitting)
    for name in data.draw(st.sets(st.sampled_from([*record.fields, "else"]), max_size=3)):
        changed[name] = data.draw(JUNK)
    for junk in (changed, data.draw(JUNK)):
        assert validator.is_valid(junk) == accepts(kind, junk), junk


@COUNT
@given(st.data(), records(MAKERS))
def test_only_fields_that_do_not_fit_are_named(data: st.DataObject, record: Record) -> None:
    kind = ValueType(record.kind)
    value = data.draw(record.fitting)
    wrong = data.draw(st.sets(st.sampled_from(list(record.fields)), min_size=1))
    for name in wrong:
        if name in record.required and data.draw(st.booleans()):
            value.pop(name)
        else:
            value[name] = [{"no": ["value", "of", "any"]}]  # of no type that there is
    with pytest.raises(Mismatch) as caught:
        kind.read(value)
    violations = caught.value.violations
    named = {each.path[0] for each in violations}
    assert named == wrong if is_model(record.kind) else named and named <= wrong
    assert all(each.description for each in violations)
    if value.keys() >= record.required - wrong and not wrong & value.keys():
        assert named == wrong  # all that is missing is named at once


@COUNT
@given(st.data(), records(MAKERS))
def test_a_value_that_was_read_is_sent_as_data_that_is_read_again(
    data: st.DataObject, record: Record
) -> None:
    kind = ValueType(record.kind)
    value = kind.read(data.draw(record.fitting))
    sent = kind.dump(value)
    Draft202012Validator(kind.output_schema).validate(sent)
    assert kind.read(sent) == value
