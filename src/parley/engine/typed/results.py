"""The result of a skill: what its return annotation promises, and checking what it returns."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from parley.engine.handoff.value import HANDOFF_KEY, Handoff
from parley.engine.typed.annotations import (
    Unresolved,
    arms,
    class_of,
    plain,
    resolved,
    signature_of,
)
from parley.engine.typed.mismatch import Mismatch, UnsupportedType
from parley.engine.typed.value_type import ValueType
from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part

_CONTENT = (str, bytes, bytearray, memoryview, Part, Artifact, Message, PurePath, Handoff)
_STREAMS = (collections.abc.AsyncIterable, collections.abc.Iterator)
_AWAITED = (collections.abc.Awaitable, collections.abc.Coroutine)
_NAMES = {kind.__name__ for kind in _CONTENT} | {
    "Path", "Any", "Iterator", "AsyncIterator", "Generator", "AsyncGenerator"
}  # fmt: skip


class BadResult(TypeError):
    """A function returned something else than its annotation says."""


class ResultType:
    """The type of a skill's result. ``schema`` describes its data part."""

    def __init__(self, kind: Any) -> None:
        kinds = arms(kind)
        self._may_be_none = type(None) in kinds
        self._type = ValueType(kind)
        self._value = self._type
        if self._may_be_none and len(kinds) > 1:
            others: Any = typing.Union[tuple(k for k in kinds if k is not type(None))]  # noqa: UP007
            self._value = ValueType(others)
        self.schema = self._value.output_schema

    def dump(self, value: object) -> Any:
        """Return the data of a result, ``None`` if there is none. Raises ``BadResult``."""
        if isinstance(value, Message) and HANDOFF_KEY in (value.metadata or {}):
            return None  # the answer of the agent that the conversation was handed to
        if value is None and self._may_be_none:
            return None
        try:
            return self._value.dump(value)
        except Mismatch as mismatch:
            raise BadResult(
                f"the function returned {an(type(value).__qualname__)} that does not fit its "
                f"annotation {self._value.name}: {mismatch}"
            ) from mismatch


def result_of(function: Callable[..., Any]) -> ResultType | None:
    """Return the type of a function's result; ``None`` if its annotation promises no data.

    That is text, bytes, parts, messages, artifacts, paths, nothing, whatever is streamed, and what
    can be anything. A union with one of them promises no data.

    Raises ``TypeError`` for an annotation that cannot be data, and for one that cannot be resolved.
    """
    signature = signature_of(function)
    if signature.return_annotation is inspect.Signature.empty:
        return None
    kind = resolved(function, {"return": signature.return_annotation})["return"]
    what = f"the skill {getattr(function, '__name__', None) or repr(function)!r}"
    if isinstance(kind, Unresolved):
        if kind.text.partition("[")[0].rpartition(".")[2] in _NAMES:
            return None
        raise TypeError(
            f"{what} returns {kind.text!r}, which cannot be resolved ({kind.missing}); import it "
            "where the function is defined, outside of TYPE_CHECKING, or write -> object"
        )
    if class_of(kind) in _AWAITED and typing.get_args(plain(kind)):
        kind = typing.get_args(plain(kind))[-1]
    if any(_is_content(arm) for arm in arms(kind)) or arms(kind) == (type(None),):
        return None
    try:
        return ResultType(kind)
    except UnsupportedType as error:
        raise TypeError(
            f"{what} returns what cannot be sent as data: {error}; or write -> object, which "
            "promises nothing"
        ) from None


def _is_content(kind: Any) -> bool:
    """Return whether values of a type may be content that is no data."""
    kind = plain(kind)
    if kind in (Any, object, typing.NoReturn, typing.Never) or isinstance(kind, typing.TypeVar):
        return True
    owner = class_of(kind)
    if not isinstance(owner, type):
        return False
    if issubclass(owner, _CONTENT) or _is_stream(owner):
        return True
    if owner in (list, tuple, collections.abc.Sequence):
        items = [item for item in typing.get_args(kind) if item is not ...]
        return not items or any(
            item in (Any, object) or any(_is_content_part(arm) for arm in arms(item))
            for item in items
        )
    return False


def _is_content_part(kind: Any) -> bool:
    owner = class_of(kind)
    return isinstance(owner, type) and issubclass(owner, Part)


def _is_stream(owner: type) -> bool:
    return owner in (collections.abc.Iterable, collections.abc.Generator) or (
        issubclass(owner, _STREAMS) and not hasattr(owner, "__dataclass_fields__")
    )
