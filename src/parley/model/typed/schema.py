"""Self-contained JSON Schemas (2020-12), and the annotations from which they are made.

Definitions are under the schema's own ``$defs``. msgspec leaves out the formats of times and of
dates with a time, because it also reads them without a time zone; these schemas include them
nevertheless: they show what to send, and pages use them to choose an input field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, time
from typing import Annotated, Any, NewType, TypeVar, Union

import msgspec

REF = "#/$defs/"


def standalone(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the definitions that it uses.

    A schema that is only a reference is replaced by its target, so that readers find its
    properties.
    """
    whole = dict(schema)
    if set(whole) == {"$ref"}:
        whole = dict(defs[whole["$ref"].removeprefix(REF)])
    used: dict[str, Any] = {}
    pending = list(references(whole))
    while pending:
        name = pending.pop()
        if name not in used:
            used[name] = defs[name]
            pending += references(defs[name])
    if used:
        whole["$defs"] = {name: defs[name] for name in defs if name in used}
    return whole


def references(schema: Any) -> Iterable[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str) and value.startswith(REF):
                yield value.removeprefix(REF)
            else:
                yield from references(value)
    elif isinstance(schema, list | tuple):
        for item in schema:
            yield from references(item)


def object_of(
    properties: Mapping[str, Mapping[str, Any]], required: Iterable[str]
) -> dict[str, Any]:
    """Return the schema of an object whose properties have self-contained schemas."""
    defs: dict[str, Any] = {}
    made: dict[str, Any] = {name: hoisted(schema, defs) for name, schema in properties.items()}
    schema: dict[str, Any] = {"type": "object", "properties": made}
    if names := list(required):
        schema["required"] = names
    if defs:
        schema["$defs"] = defs
    return schema


def hoisted(schema: Mapping[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without its ``$defs``, which are added to ``defs``.

    A definition whose name is used by another one gets a new name.
    """
    own: Mapping[str, Any] = schema.get("$defs", {})
    names: dict[str, str] = {}
    for name, definition in own.items():
        chosen, number = name, 1
        while chosen in defs and defs[chosen] != definition:
            number += 1
            chosen = f"{name}_{number}"
        names[name] = chosen
    if any(name != chosen for name, chosen in names.items()):
        schema = _renamed(schema, names)
        own = {names[name]: definition for name, definition in schema["$defs"].items()}
    defs.update(own)
    return {key: value for key, value in schema.items() if key != "$defs"}


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: REF + names.get(value.removeprefix(REF), value.removeprefix(REF))
            if key == "$ref" and isinstance(value, str) and value.startswith(REF)
            else _renamed(value, names)
            for key, value in schema.items()
        }
    return [_renamed(item, names) for item in schema] if isinstance(schema, list) else schema


def narrowed(schema: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the schema of an object with only some of its properties."""
    wanted = set(fields)
    properties = schema.get("properties", {})
    if not wanted or not wanted <= set(properties):
        return dict(schema)
    defs = schema.get("$defs", {})
    required = [name for name in schema.get("required", ()) if name in wanted]
    chosen = {"properties": {name: properties[name] for name in properties if name in wanted}}
    about = {key: schema[key] for key in ("type", "title", "description") if key in schema}
    return standalone(about | chosen | ({"required": required} if required else {}), defs)


def is_object(schema: Mapping[str, Any]) -> bool:
    """Return whether the values of a schema are objects, or null."""
    shapes = _shapes(schema, schema.get("$defs", {}), ())
    return "object" in shapes and shapes <= {"object", "null"}


def _shapes(schema: Any, defs: Mapping[str, Any], above: tuple[str, ...]) -> set[str]:
    if not isinstance(schema, Mapping):
        return {"any"}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(REF):
        name = reference.removeprefix(REF)
        return set() if name in above else _shapes(defs.get(name), defs, (*above, name))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return set().union(*(_shapes(each, defs, above) for each in schema[key]))
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list):
        return set(kinds)
    if "enum" in schema or "const" in schema:
        return {"value"}
    return {"any"}


def default_of(value: Any) -> dict[str, Any]:
    """Return ``value`` as the default of a property; empty if it is not JSON."""
    dump = getattr(value, "model_dump", None)
    try:
        made = value if dump is None else dump(mode="json", by_alias=True)
        return {"default": msgspec.json.decode(msgspec.json.encode(made))}
    except (TypeError, ValueError, RecursionError):
        return {}


_FORMATS = {datetime: "date-time", time: "time"}


def add_formats(kind: Any, schema: dict[str, Any], defs: Mapping[str, Any]) -> None:
    """Add the formats of a type to msgspec's schema for it, and to ``defs``."""
    _add(kind, schema, defs, set())


def _add(kind: Any, schema: Any, defs: Mapping[str, Any], seen: set[str]) -> None:
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref", "").removeprefix(REF)
    if reference:
        if reference not in seen:
            seen.add(reference)
            _add(kind, defs.get(reference), defs, seen)
        return
    options, kinds = schema.get("anyOf"), arms(kind)
    if isinstance(options, list):
        texts = [each for each in kinds if class_of(each) in _FORMATS]
        for option in options:
            if option == {"type": "string"} and texts:
                _add(texts[0], option, defs, seen)
        others = [each for each in kinds if each not in texts and each is not type(None)]
        bigger = [option for option in options if option.keys() & {"$ref", "items"}]
        if len(others) == len(bigger) == 1:
            _add(others[0], bigger[0], defs, seen)
        return
    if class_of(kind) in _FORMATS and schema.get("type") == "string":
        schema.setdefault("format", _FORMATS[class_of(kind)])
        return
    arguments = typing.get_args(plain(kind))
    if "properties" in schema:
        hints = fields_of(kind)
        info: Any = msgspec.inspect.type_info(kind) if hints else None
        for field in info.fields if info is not None else ():
            _add(hints[field.name], schema["properties"].get(field.encode_name), defs, seen)
    elif isinstance(schema.get("items"), dict) and arguments:
        _add(arguments[0], schema["items"], defs, seen)
    elif isinstance(schema.get("additionalProperties"), dict) and len(arguments) == 2:
        _add(arguments[1], schema["additionalProperties"], defs, seen)


UNION = (Union, types.UnionType)

_QUALIFIERS = (typing.Required, typing.NotRequired, typing.Final)


class Unresolved(msgspec.Struct, frozen=True):
    """An annotation with a name that cannot be resolved."""

    text: str
    missing: str


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature for callers of ``function``.

    A wrapper that passes its arguments on (``*args``) has the signature of the wrapped function.
    """
    own = inspect.signature(function, follow_wrapped=False)
    passes_on = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own.parameters.values())
    return inspect.signature(function) if passes_on else own


def bound_keywords(function: Callable[..., Any]) -> frozenset[str]:
    """Return the parameters that ``functools.partial`` has filled by name."""
    bound: frozenset[str] = frozenset()
    while isinstance(function, functools.partial):
        bound |= function.keywords.keys()
        function = function.func
    return bound


def resolved(function: Callable[..., Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations of a function as types.

    An unresolvable annotation is ``Unresolved``. Names are looked up where the function is defined:
    in its module, and in the running functions around it.
    """
    globalns = getattr(_innermost(function), "__globals__", {})
    found: dict[str, Any] = {}
    localns: dict[str, Any] | None = None
    for name, annotation in annotations.items():
        try:
            found[name] = _evaluated(annotation, globalns, {})
            continue
        except (NameError, AttributeError, TypeError, SyntaxError):
            pass
        if localns is None:
            localns = _surroundings(function, globalns)
        try:
            found[name] = _evaluated(annotation, globalns, localns)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            found[name] = Unresolved(_text_of(annotation), str(error))
    return found


def _evaluated(annotation: Any, globalns: dict[str, Any], localns: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns, localns, include_extras=True)["it"]


def _innermost(function: Any) -> Any:
    """Return the original function, below partials, wrappers, methods and objects."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not inspect.isfunction(function) and inspect.ismethod(
            getattr(function, "__call__", None)  # noqa: B004
        ):
            function = function.__call__
        else:
            return function


def _surroundings(function: Any, globalns: dict[str, Any]) -> dict[str, Any]:
    """Return the local names around the definition of a function that is being decorated."""
    names: dict[str, Any] = {}
    frame = sys._getframe(1)
    frames = []
    while frame is not None:
        if frame.f_globals is globalns and frame.f_locals is not globalns:
            frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    for each in reversed(frames):
        names |= each.f_locals
    inner = _innermost(function)
    if inspect.isfunction(inner) and inner.__closure__:
        for name, cell in zip(inner.__code__.co_freevars, inner.__closure__, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    return names


def _text_of(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    return str(annotation)


def plain(kind: Any) -> Any:
    """Return a type without ``Annotated``, ``NewType`` and aliases around it."""
    while (inner := _within(kind)) is not None:
        kind = inner
    return kind


def _within(kind: Any) -> Any:
    """Return the type inside a wrapper such as ``Annotated`` or ``NewType``."""
    if typing.get_origin(kind) is Annotated:
        return kind.__origin__
    if isinstance(kind, NewType):
        return kind.__supertype__
    if type(kind).__name__ == "TypeAliasType":
        return kind.__value__
    if typing.get_origin(kind) in _QUALIFIERS:
        return typing.get_args(kind)[0]
    return None


def arms(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, flattened; any other type is its only member."""
    kind = plain(kind)
    if typing.get_origin(kind) in UNION:
        return tuple(arm for each in typing.get_args(kind) for arm in arms(each))
    return (type(None) if kind is None else kind,)


def class_of(kind: Any) -> Any:
    """Return the class of a type: ``Box`` of ``Box[int]``, ``list`` of ``list[int]``."""
    kind = plain(kind)
    return typing.get_origin(kind) or kind


def is_typed_dict(kind: Any) -> bool:
    """Return whether a class is a ``TypedDict``."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, msgspec struct, TypedDict or NamedTuple as types.

    Empty for any other type. Raises ``NameError`` for an annotation that cannot be resolved.
    """
    owner = class_of(kind)
    if not isinstance(owner, type):
        return {}
    is_record = (
        issubclass(owner, msgspec.Struct)
        or dataclasses.is_dataclass(owner)
        or is_typed_dict(owner)
        or (issubclass(owner, tuple) and hasattr(owner, "_fields"))
    )
    if not is_record:
        return {}
    names: Any = getattr(owner, "__struct_fields__", None) or getattr(owner, "_fields", None)
    if names is None and dataclasses.is_dataclass(owner):
        names = [field.name for field in dataclasses.fields(owner)]
    hints = typing.get_type_hints(owner, include_extras=True)
    given = dict(zip(getattr(owner, "__parameters__", ()), typing.get_args(kind), strict=False))
    chosen = hints if names is None else {name: hints[name] for name in names}
    return {name: _substituted(hint, given) for name, hint in chosen.items()}


def _substituted(kind: Any, given: Mapping[Any, Any]) -> Any:
    while typing.get_origin(kind) in _QUALIFIERS:
        kind = typing.get_args(kind)[0]
    if isinstance(kind, TypeVar):
        return given.get(kind, kind)
    parameters = getattr(kind, "__parameters__", ())
    if given and parameters and typing.get_origin(kind) is not None:
        return kind[tuple(given.get(each, each) for each in parameters)]
    return kind


def parts_of(kind: Any) -> Iterator[Any]:
    """Yield a type and all its components: arguments, union members, fields. Each class once."""
    seen: set[Any] = set()
    pending = [kind]
    while pending:
        kind = pending.pop()
        yield kind
        if (inner := _within(kind)) is not None:
            pending.append(inner)
            continue
        try:
            if kind in seen:
                continue
            seen.add(kind)
        except TypeError:  # an unhashable literal
            continue
        if typing.get_origin(kind) is not typing.Literal:
            pending += [each for each in typing.get_args(kind) if each is not ...]
        pending += fields_of(kind).values()
