"""Annotations: resolving them, and looking through aliases at what they are made of."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NewType, TypeVar, Union

import msgspec

UNION = (Union, types.UnionType)


class Unresolved(msgspec.Struct, frozen=True):
    """An annotation that names something that cannot be found."""

    text: str
    missing: str


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that callers of ``function`` have to fill.

    A wrapper that passes on what it gets (``*args``) has that of the function it wraps.
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

    One that cannot be resolved is ``Unresolved``. Names are looked up where the function is
    defined: in its module, and in the functions around it that are running.
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
    """Return the function that was written, below partials, wrappers, methods and objects."""
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
    """Return the local names around a function's definition, which is being decorated."""
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
    """Return the type that a wrapper such as ``Annotated`` or ``NewType`` is around."""
    if typing.get_origin(kind) is Annotated:
        return kind.__origin__
    if isinstance(kind, NewType):
        return kind.__supertype__
    if type(kind).__name__ == "TypeAliasType":
        return kind.__value__
    if typing.get_origin(kind) in (typing.Required, typing.NotRequired, typing.Final):
        return typing.get_args(kind)[0]
    return None


def arms(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, flat; a type that is none is its only arm."""
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
    if isinstance(kind, TypeVar):
        return given.get(kind, kind)
    parameters = getattr(kind, "__parameters__", ())
    if given and parameters and typing.get_origin(kind) is not None:
        return kind[tuple(given.get(each, each) for each in parameters)]
    return kind


def parts_of(kind: Any) -> Iterator[Any]:
    """Yield a type and all that it is made of: arguments, arms, fields. Each class comes once."""
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
