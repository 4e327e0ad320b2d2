"""Making structs of the data model from fields that were read, of JSON or of protobuf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import inspect

from parley.model.struct import InvalidField
from parley.model.tasks import TaskState
from parley.wire.json import tolerance
from parley.wire.json.problems import InvalidValue, Problem


def strict_constructor(info: inspect.StructType) -> Callable[..., Any]:
    """Return what makes a struct, and raises ``InvalidValue`` if anything is wrong.

    It takes the fields, the problems with them so far and, for a hint at unknown members, the JSON
    object that holds them.
    """
    make = info.cls
    wire = {each.name: each.encode_name for each in info.fields}
    known = {*wire, *wire.values()}
    required = [(each.name, empty_value(each.type)) for each in _required(info)]

    def construct(
        given: dict[str, Any], problems: list[Problem], value: Mapping[str, Any] | None = None
    ) -> Any:
        for name, empty in required:
            if name not in given:
                if empty is None:
                    problems.append((wire[name], f"required, but missing{hint(value)}"))
                else:
                    given[name] = empty()
        if not problems:
            try:
                return make(**given)
            except InvalidField as wrong:
                problems.append((wire[wrong.field], wrong.description))
            except ValueError as wrong:
                problems.append(("", f"{wrong}{hint(value)}"))
        raise InvalidValue(problems)

    def hint(value: Mapping[str, Any] | None) -> str:
        unknown = [repr(key[:40]) for key in value or () if key not in known]
        return f" (unknown here: {', '.join(unknown[:5])})" if unknown else ""

    return construct


def tolerant_constructor(
    info: inspect.StructType,
) -> Callable[[dict[str, Any], list[Problem]], Any]:
    """Return what makes a struct of an answer from the fields that could be read.

    It leaves out the other fields, or fills required ones with a placeholder. Raises
    ``InvalidValue`` when the fields do not show that this struct is meant.
    """
    make = info.cls
    needs = {each.name: each for each in _required(info)}
    # Of a struct with several required fields, one of these must be there.
    identifying = set()
    if any(empty_value(each.type) is None for each in needs.values()):
        identifying = set(needs) if len(needs) > 1 else {each.name for each in info.fields}
    wire = {each.name: each.encode_name for each in info.fields}

    def construct(given: dict[str, Any], problems: list[Problem]) -> Any:
        if identifying.isdisjoint(given) and identifying:
            raise InvalidValue(problems or [("", "it has none of the members that are due")])
        for name, field in needs.items():
            if name not in given:
                given[name] = placeholder(field.type)
                if empty_value(field.type) is None and not problems:
                    problems.append((wire[name], "required, but missing"))
        repaired = False
        while True:
            try:
                made = make(**given)
                break
            except ValueError as wrong:
                name = wrong.field if isinstance(wrong, InvalidField) else ""
                description = wrong.description if isinstance(wrong, InvalidField) else str(wrong)
                problems.append((wire.get(name, ""), description))
                if name in given and name not in needs:
                    del given[name]
                elif repaired or not tolerance.repair(make, given):
                    raise InvalidValue(problems) from None
                else:
                    repaired = True
        tolerance.report(problems)
        return made

    return construct


def placeholder(info: inspect.Type) -> Any:
    """Return what stands for a required field that an answer lacks."""
    empty = empty_value(info)
    if empty is not None:
        return empty()
    match info:
        case inspect.StructType():
            fields = {each.name: placeholder(each.type) for each in _required(info)}
            return tolerant_constructor(info)(fields, [])
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.VarTupleType():
            return ()
        case inspect.StrType():
            return ""
    raise InvalidValue([("", "required, but missing")])


def empty_value(info: inspect.Type) -> Callable[[], Any] | None:
    """Return what makes the empty value of a required field that ProtoJSON leaves out if empty."""
    match info:
        case inspect.StrType(min_length=None):
            return str
        case inspect.VarTupleType(min_length=None):
            return tuple
        case inspect.DictType():
            return dict
        case inspect.IntType():
            return int
        case inspect.EnumType(cls=cls) if cls is TaskState:
            return lambda: TaskState.UNSPECIFIED
    return None


def _required(info: inspect.StructType) -> list[inspect.Field]:
    return [each for each in info.fields if each.required]
