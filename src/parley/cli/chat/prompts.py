"""Prompts for the answer to a question with a JSON Schema: each member by itself.

What the schema allows is checked before the answer is sent, as far as a person can be told; the
agent checks the rest, and its objections are shown at their members, which are asked again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from msgspec import UNSET

from parley.cli.output.text import json_text
from parley.engine.typed.schema import REF
from parley.extensions.questions import Question

DEEPEST = 4  # deeper values are typed as JSON
WHOLE = "$"

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
        read = _Reader(schema)
        hint = read.hint
        if default is not UNSET and default is not None:
            hint += f" [{default if isinstance(default, str) else json_text(default)}]"
        elif not required:
            hint += " (optional)"
        if description := schema.get("description"):
            self._say(str(description))
        for number, choice in enumerate(read.choices, 1):
            self._say(f"  {number}. {choice if isinstance(choice, str) else json_text(choice)}")
        while True:
            typed = self._read(f"{path or schema.get('title') or 'answer'}{hint}:").strip()
            if not typed and (not required or default is not UNSET):
                return UNSET if path or default is UNSET else default
            try:
                return read(typed)
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
                continue  # it was left out, and nobody objected
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


class _Reader:
    """Reads a value of a schema from a line. Raises ``ValueError`` with what is expected."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        kind = schema.get("type")
        self.choices: list[Any] = schema["enum"] if isinstance(schema.get("enum"), list) else []
        self._low, self._high = schema.get("minimum"), schema.get("maximum")
        self.hint = ""
        if self.choices:
            self.hint, self._read = f" (1 to {len(self.choices)})", self._choice
        elif kind == "boolean":
            self.hint, self._read = " (y/n)", self._boolean
        elif kind in ("integer", "number"):
            self.hint, self._read = self._bounds(), self._number
        elif kind == "string":
            form = schema.get("format")
            self.hint, self._read = f" ({form})" if isinstance(form, str) else "", self._text
        else:
            self.hint, self._read = " (JSON)", _json

    def __call__(self, typed: str) -> Any:
        return self._read(typed)

    def _choice(self, typed: str) -> Any:
        if typed.isdecimal() and 1 <= int(typed) <= len(self.choices):
            return self.choices[int(typed) - 1]
        found = [each for each in self.choices if str(each).lower() == typed.lower()]
        if len(found) != 1:
            raise ValueError(f"give a number from 1 to {len(self.choices)}, or one of them")
        return found[0]

    def _boolean(self, typed: str) -> bool:
        if typed.lower() not in ("y", "yes", "true", "n", "no", "false"):
            raise ValueError("give y or n")
        return typed.lower() in ("y", "yes", "true")

    def _bounds(self) -> str:
        if self._low is not None and self._high is not None:
            return f" ({self._low} to {self._high})"
        if self._low is not None:
            return f" (at least {self._low})"
        return "" if self._high is None else f" (at most {self._high})"

    def _number(self, typed: str) -> int | float:
        schema = self._schema
        is_whole = schema.get("type") == "integer"
        try:
            value = int(typed) if is_whole else float(typed)
        except ValueError:
            raise ValueError(f"give a {'whole ' if is_whole else ''}number") from None
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if (self._low is not None and value < self._low) or not math.isfinite(value):
            raise ValueError(f"give at least {self._low}")
        if self._high is not None and value > self._high:
            raise ValueError(f"give at most {self._high}")
        if above is not None and value <= above:
            raise ValueError(f"give more than {above}")
        if below is not None and value >= below:
            raise ValueError(f"give less than {below}")
        return value

    def _text(self, typed: str) -> str:
        least, most = self._schema.get("minLength", 0), self._schema.get("maxLength", math.inf)
        if not typed and least == 0:
            raise ValueError("give a text")
        if not least <= len(typed) <= most:
            at_most = "" if most == math.inf else f", at most {most}"
            raise ValueError(f"give at least {least} characters{at_most}")
        if self._schema.get("format") == "date":
            try:
                date.fromisoformat(typed)
            except ValueError:
                raise ValueError("give a date such as 2027-03-14") from None
        return typed


def _json(typed: str) -> Any:
    try:
        return json.loads(typed)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"give JSON: {error}") from None
