"""The typed inputs of a skill: their schema, and their values from a message."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from parley.model.parts import Message
from parley.model.typed.schema import default_of, is_object, narrowed, object_of
from parley.model.typed.value_type import ValueType, data_of, json_in, read_text
from parley.model.typed.violations import Mismatch, Path, Violation, expected

NO_DATA = "expected a data part, or text that is a JSON object"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a function that a message fills."""

    name: str
    type: ValueType
    required: bool
    default: Any


class Inputs:
    """The typed parameters of a function, filled from the message that began the task.

    A single parameter whose values are objects gets the data of the message itself; otherwise the
    data is an object with a member for each parameter. ``turn`` and ``text`` are the parameters
    that get the turn and the message's text; ``order`` are the positional parameters.
    """

    def __init__(
        self,
        fields: tuple[Field, ...],
        *,
        turn: str = "",
        text: str = "",
        order: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self.fields = fields
        self._turn = turn
        self.text = text
        self._order = order
        self._only = fields[0] if len(fields) == 1 else None
        self._is_whole = self._only is not None and is_object(self._only.type.schema)
        self.schema = self._schema()

    def _schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the data; ``None`` if no parameter is typed."""
        if not self.fields:
            return None
        if self._is_whole:
            return self.fields[0].type.schema
        properties = {
            field.name: field.type.schema
            if field.required
            else {**field.type.schema, **default_of(field.default)}
            for field in self.fields
        }
        return object_of(properties, [field.name for field in self.fields if field.required])

    @property
    def takes_turn(self) -> bool:
        """True if a parameter is the turn."""
        return bool(self._turn)

    # -- values --------------------------------------------------------------------------------

    def read(self, message: Message) -> dict[str, Any]:
        """Return the values of the parameters in a message. Raises ``Mismatch``."""
        if not self.fields:
            return {}
        data = data_of(message)
        if data is not UNSET:
            return self.read_data(data)
        text = message.text.strip()
        if text and self._only is not None and not self._is_whole:
            try:
                return {self._only.name: read_text(self._only.type, text)}
            except Mismatch as mismatch:
                if self._only.required or not self._turn:
                    raise Mismatch(_under(self._only.name, mismatch.violations)) from None
        values = self.read_data({})
        if text and not self._turn:
            # Otherwise the function would never see the text.
            raise Mismatch([Violation((), NO_DATA)])
        return values

    def read_data(self, data: Any) -> dict[str, Any]:
        """Return the values of the parameters in the data of a message. Raises ``Mismatch``."""
        if self._is_whole:
            [field] = self.fields
            if data == {} and not field.required:
                return {}
            return {field.name: field.type.read(data)}
        if self._only is not None and not (isinstance(data, dict) and self._only.name in data):
            field = self._only
            if data != {} or field.required:
                try:
                    return {field.name: field.type.read(data)}  # the data is the value itself
                except Mismatch as mismatch:
                    if not isinstance(data, dict):
                        raise Mismatch(_under(field.name, mismatch.violations)) from None
        if not isinstance(data, dict):
            raise Mismatch([Violation((), "expected an object")])
        values: dict[str, Any] = {}
        violations: list[Violation] = []
        for field in self.fields:
            if field.name not in data:
                if field.required:
                    violations.append(_missing(field))
                continue
            try:
                values[field.name] = field.type.read(data[field.name])
            except Mismatch as mismatch:
                violations += _under(field.name, mismatch.violations)
        if violations:
            raise Mismatch(violations)
        return values

    def arguments(
        self, values: Mapping[str, Any], turn: Any, text: str
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional arguments and the keyword arguments of a call."""
        by_name = dict(values)
        if self._turn:
            by_name[self._turn] = turn
        if self.text:
            by_name[self.text] = text
        by_position: list[Any] = []
        for name, default in self._order:
            by_position.append(by_name.pop(name, default))
        return by_position, by_name

    # -- missing values ------------------------------------------------------------------------

    def data_of(self, message: Message) -> Any:
        """Return the data of the message that began the task, if there is any."""
        data = data_of(message)
        if data is UNSET:
            text = message.text.strip()
            if self._only is None or self._is_whole or not text:
                return {}
            data = _guess(text)
        if self._only is not None and not self._is_whole:
            is_named = isinstance(data, dict) and self._only.name in data
            return data if is_named or data == {} else {self._only.name: data}
        return data

    def answered(self, data: Any, problems: tuple[Violation, ...], answer: Message) -> Any:
        """Return the data with the values of an answer to a question about ``problems``.

        Wrong values are left out; objects are merged. A text that is not a JSON object is the value
        of the only missing field.
        """
        fields = {_names(each.path) for each in problems}
        kept = _without(data, fields)
        added = data_of(answer)
        if added is UNSET:
            text = answer.text.strip()
            if len(fields) != 1 or () in fields or not text:
                return kept
            [field] = fields
            return _with(kept, field, self._as_text(kept, field, text))
        if (
            self._only is not None
            and not self._is_whole
            and (not isinstance(added, dict) or self._only.name not in added)
        ):
            added = {self._only.name: added}
        return _merged(kept, added)

    def _as_text(self, kept: Any, path: Path, text: str) -> Any:
        """Return a text as the value of a field: the text itself, or its JSON value if that
        fits."""
        as_json = json_in(text)
        if as_json is UNSET:
            return text
        for value in (text, as_json):
            try:
                self.read_data(_with(kept, path, value))
                return value
            except Mismatch as mismatch:
                if all(each.path[: len(path)] != path for each in mismatch.violations):
                    return value
        return text

    def schema_of(self, problems: tuple[Violation, ...]) -> dict[str, Any]:
        """Return the schema of an answer: the properties that are missing or wrong."""
        assert self.schema is not None
        return narrowed(self.schema, (str(each.path[0]) if each.path else "" for each in problems))


def _missing(field: Field) -> Violation:
    return Violation((field.name,), f"required: {expected(field.type.schema)}")


def _under(name: str, violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
    return tuple(Violation((name, *each.path), each.description) for each in violations)


def _names(path: Path) -> Path:
    """Return the path to a field in an answer: a wrong item makes its whole list wrong."""
    return tuple(itertools.takewhile(lambda step: isinstance(step, str), path))


def _guess(text: str) -> Any:
    found = json_in(text)
    return text if found is UNSET else found


def _without(data: Any, paths: set[Path]) -> Any:
    """Return a copy of ``data`` without the members at some paths."""
    made: dict[str, Any] = {}
    if () in paths or not isinstance(data, dict):
        return made
    for name, value in data.items():
        below = {path[1:] for path in paths if path[0] == name}
        if () not in below:
            made[name] = _without(value, below) if below else value
    return made


def _with(data: Any, path: Path, value: Any) -> Any:
    """Return a copy of ``data`` with a value at a path of member names."""
    if not path:
        return value
    step, *rest = path
    below = data.get(step) if isinstance(data, dict) else None
    return {**(data if isinstance(data, dict) else {}), step: _with(below, tuple(rest), value)}


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}
