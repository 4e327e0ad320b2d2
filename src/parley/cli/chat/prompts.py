"""Prompts for the answer to a question with a JSON Schema: each member by itself.

Choices, numbers with their bounds and dates are checked before the answer is sent. The agent checks
the rest; its objections are shown at their members, which are asked again.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import Any

from msgspec import UNSET

from parley.cli.output.text import json_text
from parley.extensions.questions import Question
from parley.model.typed.schema import REF

DEEPEST = 4  # deeper values are typed as JSON
WHOLE = "$"

BOUNDS = (
    ("minimum", operator.ge, "at least"),
    ("maximum", operator.le, "at most"),
    ("exclusiveMinimum", operator.gt, "more than"),
    ("exclusiveMaximum", operator.lt, "less than"),
)
"""The bounds of a number in a schema, in words."""

Read = Callable[[str], str]
"""Shows a prompt, and returns the typed line."""
Say = Callable[[str], None]


def answer_to(asked: Question, read: Read, say: Say, earlier: Any = UNSET) -> Any:
    """Ask for the answer to a question, and return it.

    Of an ``earlier`` answer the members without objections are kept.
    """
    problems = {each.field.removeprefix("$."): each.description for each in asked.problems}
    if WHOLE in problems or not problems:
        earlier = UNSET
    form = _Form(asked.schema.get("$defs", {}), read, say, problems)
    return form.value(asked.schema, "", earlier, required=True, depth=0)


class _Form:
    def __init__(
        self, defs: Mapping[str, Any], read: Read, say: Say, problems: Mapping[str, str]
    ) -> None:
        self._defs = defs
        self._read = read
        self._say = say
        self._problems = problems

    def value(self, schema: Any, path: str, earlier: Any, *, required: bool, depth: int) -> Any:
        """Return the value at a path, ``UNSET`` for an optional value that is left out."""
        schema, allows_null = self._plain(schema)
        if earlier is not UNSET and not self._is_wrong(path):
            return earlier
        if (said := self._problems.get(path or WHOLE)) is not None:
            self._say(f"! {said}")
        required = required and not allows_null
        kind = schema.get("type")
        if kind == "object" and isinstance(schema.get("properties"), dict) and depth < DEEPEST:
            return self._members(schema, path, earlier, required=required, depth=depth)
        if kind == "array" and isinstance(schema.get("items"), dict) and depth < DEEPEST:
            return self._items(schema, path, earlier, depth=depth)
        default = schema.get("default", UNSET)
        hint = _hint(schema)
        if default is not UNSET and default is not None:
            hint += f" [{default if isinstance(default, str) else json_text(default)}]"
        elif not required:
            hint += " (optional)"
        if description := schema.get("description"):
            self._say(str(description))
        for number, choice in enumerate(schema.get("enum", ()), 1):
            self._say(f"  {number}. {choice if isinstance(choice, str) else json_text(choice)}")
        while True:
            typed = self._read(f"{path or schema.get('title') or 'answer'}{hint}:").strip()
            if not typed and (not required or default is not UNSET):
                return UNSET if path or default is UNSET else default
            try:
                return _read_as(schema, typed)
            except ValueError as error:
                self._say(f"! {error}")

    def _is_wrong(self, path: str) -> bool:
        begins = (f"{path}.", f"{path}[") if path else ("",)
        return any(each == path or each.startswith(begins) for each in self._problems)

    def _members(self, schema: Any, path: str, earlier: Any, *, required: bool, depth: int) -> Any:
        known = earlier if isinstance(earlier, dict) else {}
        needed = schema.get("required", ())
        if path and not required and not known and not self._agrees(f"Give {path}?"):
            return UNSET
        found = {}
        for name, member in schema["properties"].items():
            inner = f"{path}.{name}" if path else name
            if known and name not in known and not self._is_wrong(inner):
                continue  # it was left out, without an objection
            value = self.value(
                member, inner, known.get(name, UNSET), required=name in needed, depth=depth + 1
            )
            if value is not UNSET:
                found[name] = value
        return found

    def _items(self, schema: Any, path: str, earlier: Any, *, depth: int) -> Any:
        known = earlier if isinstance(earlier, list) else []
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        found: list[Any] = []
        while len(found) < most:
            old = known[len(found)] if len(found) < len(known) else UNSET
            if known and old is UNSET and path not in self._problems:
                break
            if len(found) >= least and old is UNSET:
                more = "Another" if found else "A first"
                if not self._agrees(f"{more} value of {path or 'the list'}?"):
                    break
            inner = f"{path}[{len(found)}]"
            found.append(self.value(schema["items"], inner, old, required=True, depth=depth + 1))
        return found

    def _agrees(self, text: str) -> bool:
        return self._read(f"{text} y/N").strip().lower() in ("y", "yes")

    def _plain(self, schema: Any) -> tuple[dict[str, Any], bool]:
        """Return a schema without its reference, and whether it allows null."""
        allows_null = False
        for _ in range(DEEPEST):
            if not isinstance(schema, dict):
                return {}, allows_null
            around = {k: v for k, v in schema.items() if k in ("default", "description", "title")}
            if isinstance(reference := schema.get("$ref"), str):
                schema = {**(self._defs.get(reference.removeprefix(REF)) or {}), **around}
                continue
            either = schema.get("anyOf") or schema.get("oneOf") or ()
            others = [each for each in either if each != {"type": "null"}]
            if len(others) < len(either) and len(others) == 1:
                schema, allows_null = {**others[0], **around}, True
                continue
            kind = schema.get("type")
            if isinstance(kind, list) and "null" in kind and len(kind) == 2:
                (kind,) = (each for each in kind if each != "null")
                return {**schema, "type": kind}, True
            break
        return schema, allows_null


def _hint(schema: Mapping[str, Any]) -> str:
    """Return the form of a value, in brackets; empty for a plain text."""
    if "enum" in schema:
        return f" (1 to {len(schema['enum'])})"
    kind, form = schema.get("type"), str(schema.get("format", ""))
    if kind in ("integer", "number"):
        form = ", ".join(f"{words} {schema[name]}" for name, _, words in BOUNDS if name in schema)
    elif kind != "string":
        form = "y/n" if kind == "boolean" else "JSON"
    return f" ({form})" if form else ""


def _read_as(schema: Mapping[str, Any], typed: str) -> Any:
    """Return a typed value. Raises ``ValueError`` with the expected form."""
    kind = schema.get("type")
    if choices := schema.get("enum"):
        if typed.isdecimal() and 1 <= int(typed) <= len(choices):
            return choices[int(typed) - 1]
        found = [each for each in choices if str(each).lower() == typed.lower()]
        if len(found) != 1:
            raise ValueError(f"give a number from 1 to {len(choices)}, or one of them")
        return found[0]
    if kind == "boolean":
        if typed.lower() not in ("y", "yes", "true", "n", "no", "false"):
            raise ValueError("give y or n")
        return typed.lower() in ("y", "yes", "true")
    if kind == "string":
        if schema.get("format") == "date":
            with _expecting("a date such as 2027-03-14"):
                date.fromisoformat(typed)
        if not typed:
            raise ValueError("give a text")
        return typed
    if kind not in ("integer", "number"):
        with _expecting("JSON"):
            return json.loads(typed)
    with _expecting("a whole number" if kind == "integer" else "a number"):
        value = int(typed) if kind == "integer" else float(typed)
    for name, holds, words in BOUNDS:
        if name in schema and not holds(value, schema[name]):
            raise ValueError(f"give {words} {schema[name]}")
    return value


@contextmanager
def _expecting(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError):
        raise ValueError(f"give {what}") from None
