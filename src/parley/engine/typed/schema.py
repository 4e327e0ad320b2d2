"""JSON Schemas (2020-12) that stand alone: their definitions are under their own ``$defs``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

REF = "#/$defs/"


def standalone(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the definitions that it uses.

    One that is only a reference becomes what it refers to, so that readers find its properties.
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
    """Return the schema of an object whose properties have schemas that stand alone."""
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

    A definition whose name is taken by another one gets a new name.
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
    """Return ``value`` as the default of a property; nothing if JSON does not have it."""
    dump = getattr(value, "model_dump", None)
    try:
        made = value if dump is None else dump(mode="json", by_alias=True)
        return {"default": msgspec.json.decode(msgspec.json.encode(made))}
    except (TypeError, ValueError, RecursionError):
        return {}
