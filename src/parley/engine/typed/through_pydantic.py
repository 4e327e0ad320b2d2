"""Types of pydantic: their schema, reading values, and pydantic's own messages.

pydantic is imported only where a type comes from it.
"""

from __future__ import annotations

import contextlib
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from parley.engine.content import refuse_non_finite
from parley.engine.typed.annotations import parts_of, plain
from parley.engine.typed.mismatch import Mismatch, UnsupportedType, Violation

MAX_ERRORS = 1000
"""Above how many errors pydantic's messages are left out: it can only make all of them."""

_MODULES = ("pydantic", "pydantic_core", "annotated_types")


def is_pydantic(kind: Any) -> bool:
    """Return whether a type itself is a class of pydantic, or is annotated with its constraints."""
    return is_model(kind) or has_constraints(kind) or _is_own(plain(kind))


def is_model(kind: Any) -> bool:
    """Return whether a type is a pydantic model or dataclass."""
    kind = plain(kind)
    owner = typing.get_origin(kind) or kind
    return isinstance(owner, type) and hasattr(owner, "__pydantic_validator__")


def has_constraints(kind: Any) -> bool:
    """Return whether a type is annotated with constraints of pydantic."""
    if typing.get_origin(kind) is not typing.Annotated:
        return False
    return any(_is_own(type(each)) or _is_own(each) for each in kind.__metadata__)


def _is_own(kind: Any) -> bool:
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _MODULES


def uses_pydantic(kind: Any) -> bool:
    """Return whether pydantic reads values of ``kind``: it is somewhere in it, and no struct is.

    Raises ``UnsupportedType`` for a msgspec struct in which pydantic's constraints would be lost.
    """
    has_struct = has_pydantic = False
    constrained: Any = None
    for part in parts_of(kind):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            has_struct = True
        elif is_pydantic(part):
            has_pydantic = True
            if has_constraints(part):
                constrained = part
    if has_struct and constrained is not None:
        raise UnsupportedType(
            f"{constrained} stands in a msgspec struct, which knows no constraints of pydantic; "
            "use msgspec.Meta there"
        )
    return has_pydantic and not has_struct


class PydanticType:
    """A type that pydantic reads and writes. Raises ``UnsupportedType``."""

    def __init__(self, kind: Any) -> None:
        try:
            import pydantic
        except ImportError:
            raise UnsupportedType(f"{kind} needs pydantic, which is not installed") from None
        self._pydantic = pydantic
        self.kind = kind
        try:
            self._adapter: Any = pydantic.TypeAdapter(kind)
            self._adapter.json_schema()
        except (pydantic.errors.PydanticUserError, NameError) as error:
            reason = str(error).partition("\n")[0]
            raise UnsupportedType(f"pydantic cannot read {kind}: {reason}") from None

    def schema(self, *, output: bool) -> dict[str, Any]:
        """Return the JSON Schema of values that are read, or of those that are written."""
        made: dict[str, Any] = self._adapter.json_schema(
            ref_template="#/$defs/{model}", mode="serialization" if output else "validation"
        )
        return made

    def read(self, data: Any) -> Any:
        """Return ``data`` as a value. Raises ``Mismatch``."""
        return self._told(lambda: self._adapter.validate_json(msgspec.json.encode(data)))

    def dump(self, value: Any) -> Any:
        """Return a value as JSON data. Raises ``Mismatch`` for a value that does not fit."""
        value = self._told(lambda: self._adapter.validate_python(value))
        with contextlib.suppress(TypeError):  # by_name came with pydantic 2.11
            # Models are not checked again by themselves, and may have been changed since.
            self._told(lambda: self._adapter.validate_python(_raw(value), by_name=True))
        try:
            data = self._adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
            refuse_non_finite(data)
        except (ValueError, TypeError) as error:
            raise Mismatch([Violation((), str(error))]) from error
        return data

    def _told(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._pydantic.ValidationError as error:
            raise Mismatch(violations_in(error)) from None


def violations_in(error: Any) -> list[Violation]:
    """Return the violations in an error of pydantic, in its words."""
    if error.error_count() > MAX_ERRORS:
        return [Violation((), f"{error.error_count():,} values in it do not fit")]
    return [
        Violation(tuple(each["loc"]), each["msg"])
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def hooked(kind: Any) -> PydanticType | None:
    """Return the reader of a pydantic model within a type that msgspec reads."""
    if "pydantic" not in sys.modules or not is_model(kind):
        return None
    made = _HOOKED.get(kind)
    if made is None:
        made = _HOOKED[kind] = PydanticType(kind)
    return made


_HOOKED: dict[Any, PydanticType] = {}


def _raw(value: Any) -> Any:
    """Return a value with its models as their fields, so that they are checked again."""
    fields = getattr(type(value), "__pydantic_fields__", None)
    if fields is not None and not isinstance(value, type):
        held = vars(value) if hasattr(value, "__dict__") else {}
        made = {name: _raw(held[name]) for name in fields if name in held}
        if "root" in fields and len(fields) == 1 and hasattr(type(value), "model_validate"):
            return made["root"]
        return {**made, **(getattr(value, "__pydantic_extra__", None) or {})}
    if type(value) is list:
        return [_raw(each) for each in value]
    if type(value) is tuple:
        return tuple(_raw(each) for each in value)
    if type(value) is dict:
        return {key: _raw(each) for key, each in value.items()}
    return value
