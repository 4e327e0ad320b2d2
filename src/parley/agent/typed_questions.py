"""Questions with typed answers: sent with a schema, and asked again after a wrong answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from parley.engine.content import to_parts
from parley.engine.turn.attempt import Attempt
from parley.engine.typed.inputs import Inputs
from parley.extensions.questions import schema_part
from parley.model.errors import FieldViolation
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role
from parley.model.tasks import TaskState
from parley.model.typed.value_type import ValueType, read_answer
from parley.model.typed.violations import WHOLE, Mismatch, UnsupportedType

INPUT_KEY = "parley:input"
"""The key of the questions for missing values of the input."""


async def ask_typed(attempt: Attempt, question: object, kind: Any, key: str | None) -> Any:
    """Return the answer to a question as a value of the type ``kind``; ask until it fits.

    Every question and answer is logged under its own key, so that later attempts get the same
    value. Raises ``UnsupportedType`` for a type that has no JSON form.
    """
    answer_type = _type_of(kind)
    key = key or attempt.next_question_key()
    content: object = question
    problems: tuple[FieldViolation, ...] = ()
    times = 0
    while True:
        times += 1
        asked = _asked(content, answer_type.schema, problems)
        answer = await attempt.ask(
            TaskState.INPUT_REQUIRED, asked, key if times == 1 else f"{key}:again:{times}"
        )
        try:
            return read_answer(answer_type, answer)
        except Mismatch as mismatch:
            content = (*to_parts(question), Part(text=_said("\n\nThat does not fit:", mismatch)))
            problems = mismatch.fields


async def ask_inputs(attempt: Attempt, inputs: Inputs, mismatch: Mismatch) -> dict[str, Any]:
    """Return the values of a skill's inputs; ask for missing and wrong values until all fit.

    Answers are added to the values that fit.
    """
    data = inputs.data_of(attempt.request.message)
    times = 0
    while True:
        times += 1
        problems = mismatch.violations
        text = _said("Some input is missing, or does not fit:", mismatch)
        asked = _asked(text, inputs.schema_of(problems), mismatch.fields)
        key = INPUT_KEY if times == 1 else f"{INPUT_KEY}:again:{times}"
        answer = await attempt.ask(TaskState.INPUT_REQUIRED, asked, key)
        data = inputs.answered(data, problems, answer)
        try:
            return inputs.read_data(data)
        except Mismatch as another:
            mismatch = another


def _asked(
    content: object, schema: Mapping[str, Any], problems: Iterable[FieldViolation]
) -> Message:
    """Return a question with the schema of its answer."""
    parts = (*to_parts(content), schema_part(schema, problems))
    if isinstance(content, Message):
        return replace(content, message_id=new_id(), parts=parts)
    return Message(message_id=new_id(), role=Role.AGENT, parts=parts)


def _said(heading: str, mismatch: Mismatch) -> str:
    lines = [
        f"- {each.description}" if each.field == WHOLE else f"- {each.field}: {each.description}"
        for each in mismatch.fields
    ]
    return "\n".join([heading, *lines])


def _type_of(kind: Any) -> ValueType:
    try:
        return _cached(kind)
    except TypeError as error:
        if isinstance(error, UnsupportedType):
            raise
        return ValueType(kind)  # an unhashable type, such as Literal[[]]


_cached = lru_cache(maxsize=256)(ValueType)
