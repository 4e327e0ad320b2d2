"""Questions with the JSON Schema of their answer (``docs/extensions/typed-questions.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.extensions.named_in_status import named_in_status
from parley.model.errors import FieldViolation
from parley.model.extensions import Extension
from parley.model.parts import Message, Part, text_of
from parley.model.tasks import Task

TYPED_QUESTIONS = "urn:parley:typed-questions:v1"

SCHEMA_MEDIA_TYPE = "application/schema+json"
"""The media type of the part of a question that has the schema."""


class Question(msgspec.Struct, frozen=True):
    """A question whose answer has a JSON Schema.

    ``problems`` say what was wrong with an earlier answer; ``field`` is a path such as
    ``stops[0].city``, or ``$`` for the whole answer.
    """

    text: str
    schema: dict[str, Any]
    problems: tuple[FieldViolation, ...] = ()


def schema_part(schema: Mapping[str, Any], problems: Iterable[FieldViolation] = ()) -> Part:
    """Return the part of a question that has the schema of its answer."""
    data: dict[str, Any] = {"schema": dict(schema)}
    if found := [{"field": each.field, "description": each.description} for each in problems]:
        data["problems"] = found
    return Part(data=data, media_type=SCHEMA_MEDIA_TYPE)


def question(asked: Task | Message) -> Question | None:
    """Return the question that a task waits on, or a message asks, if it has a schema.

    Answer it with data that fits the schema: ``await remote.send(data=answer, task=task)``.
    """
    if isinstance(asked, Task):
        message = asked.status.message if asked.state.is_interrupted else None
        if message is None:
            return None
        asked = message
    for part in reversed(asked.parts):
        if part.media_type == SCHEMA_MEDIA_TYPE or _is_schema(part.data):
            data = part.data
            if isinstance(data, dict) and isinstance(schema := data.get("schema"), dict):
                others = tuple(other for other in asked.parts if other is not part)
                return Question(text_of(others), schema, _problems(data.get("problems")))
    return None


def _is_schema(data: Any) -> bool:
    """Return whether data has the members of a question: 0.3 has no media types of data."""
    return isinstance(data, dict) and "schema" in data and data.keys() <= {"schema", "problems"}


def _problems(given: Any) -> tuple[FieldViolation, ...]:
    return tuple(
        FieldViolation(str(each.get("field", "$")), str(each.get("description", "")))
        for each in (given if isinstance(given, list) else ())
        if isinstance(each, dict)
    )


class TypedQuestions(Extension):
    """A question of the agent may have the JSON Schema of its answer.

    The schema is always sent; where the extension is active, the message of the question names it.
    """

    uri = TYPED_QUESTIONS
    description = "A question may have the JSON Schema of its answer, as a data part."

    def send(self, event: Any) -> Any:
        """Name the extension in the message of a question that has a schema."""
        return named_in_status(event, self.uri, SCHEMA_MEDIA_TYPE)
