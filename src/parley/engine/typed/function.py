"""The parameters and the result of an author's function, from its annotations."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal, NoReturn

from parley.engine.handoff import HANDOFF_KEY, Handoff
from parley.engine.typed.inputs import Field, Inputs
from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part
from parley.model.typed.schema import (
    Unresolved,
    arms,
    bound_keywords,
    class_of,
    default_of,
    plain,
    resolved,
    signature_of,
)
from parley.model.typed.value_type import ValueType
from parley.model.typed.violations import Mismatch, UnsupportedType

Takes = Literal["turn", "text", "nothing", "typed"]
"""The arguments of a function: the turn, the message's text, nothing, or ``Inputs``."""

FORMS = (
    "a skill takes the turn (def f(turn: Turn)), the text (def f(text: str)), nothing, or typed "
    "parameters, also together with the turn (def f(turn: Turn, request: Conversion), "
    'def f(amount: float, currency: str = "EUR"))'
)

_DECLARATIONS = ("pydantic", "msgspec", "fastapi", "annotated_types")


def parameters_of(
    function: Callable[..., Any], turns: tuple[type, ...]
) -> tuple[Takes, Inputs | None]:
    """Return the source of ``function``'s arguments; ``turns`` are the types of turns.

    Raises ``TypeError`` for a function whose parameters cannot be filled.
    """
    what = f"the skill {getattr(function, '__name__', None) or repr(function)!r}"
    bound = bound_keywords(function)
    parameters = [p for p in signature_of(function).parameters.values() if p.name not in bound]
    if not parameters:
        return "nothing", None
    annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    hints = resolved(function, annotations)
    roles = {p.name: _role(p, hints, turns) for p in parameters}
    if len(parameters) == 1 and hints.get(parameters[0].name) in (Any, object):
        roles[parameters[0].name] = "untyped"
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    to_fill = [p for p in named if roles[p.name] != "untyped" or p.default is p.empty]
    if not any(roles[p.name] == "typed" for p in parameters):
        return _untyped(what, parameters, to_fill, roles)
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            _refuse(what, f"takes {parameter}, which a message cannot fill")
    turn = [p for p in to_fill if roles[p.name] == "turn"]
    untyped = [p for p in to_fill if roles[p.name] == "untyped"]
    if untyped and not turn and untyped[0] is named[0]:
        turn = [untyped.pop(0)]
    for parameter in untyped:
        _refuse(what, f"does not say what {parameter.name!r} is: write its type")
    _check_one(what, turn)
    typed = [p for p in to_fill if roles[p.name] == "typed"]
    name = turn[0].name if turn else ""
    if [_is_text(hints[p.name]) for p in typed] == [True]:
        [text] = typed
        if not name:
            return "text", None
        return "typed", Inputs((), turn=name, text=text.name, order=_order(named))
    found = [_field(what, p, hints[p.name]) for p in typed]
    fields = tuple(field for field in found if field is not None)
    return "typed", Inputs(fields, turn=name, order=_order(named))


def tool_inputs(function: Callable[..., Any], turns: tuple[type, ...]) -> Inputs:
    """Return the parameters of a tool for a model; all are typed except the turn.

    Raises ``TypeError`` for a function whose parameters cannot be filled.
    """
    what = f"the tool {getattr(function, '__name__', None) or repr(function)!r}"
    bound = bound_keywords(function)
    parameters = [p for p in signature_of(function).parameters.values() if p.name not in bound]
    annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    hints = resolved(function, annotations)
    turn, fields = "", []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{what} takes {parameter}, which a model cannot fill; name it")
        role = _role(parameter, hints, turns)
        if role == "turn":
            turn = parameter.name
        elif role == "typed":
            fields.append(_field(what, parameter, hints[parameter.name]))
        elif parameter.default is parameter.empty:
            raise TypeError(
                f"{what} does not say what {parameter.name!r} is: write its type, such as "
                f"def f({parameter.name}: str)"
            )
    found = tuple(field for field in fields if field is not None)
    return Inputs(found, turn=turn, order=_order(parameters))


def _untyped(
    what: str,
    parameters: list[inspect.Parameter],
    to_fill: list[inspect.Parameter],
    roles: Mapping[str, str],
) -> tuple[Takes, Inputs | None]:
    """Return the source of untyped parameters."""
    needed = [p for p in to_fill if p.default is p.empty]
    turns = [p for p in to_fill if roles[p.name] == "turn"]
    _check_one(what, turns)
    if len(needed) > 1:
        unclear = [p.name for p in needed if roles[p.name] == "untyped"][-1]
        _refuse(what, f"needs {len(needed)} arguments; write the type of {unclear!r}")
    if turns and turns[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return "typed", Inputs((), turn=turns[0].name)
    for parameter in needed:
        is_turn = roles[parameter.name] == "turn" or parameter.name.lstrip("_") in ("turn", "")
        if parameter.kind is parameter.KEYWORD_ONLY or not is_turn:
            _refuse(what, f"does not say what {parameter.name!r} is: write its type")
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return ("turn" if any(p.kind in positional for p in parameters) else "nothing"), None


def _check_one(what: str, turns: list[inspect.Parameter]) -> None:
    if len(turns) > 1:
        names = " and ".join(repr(p.name) for p in turns)
        _refuse(what, f"takes the turn twice, as {names}")


def _role(
    parameter: inspect.Parameter, hints: Mapping[str, Any], turns: tuple[type, ...]
) -> Literal["turn", "typed", "untyped"]:
    """Return the role of a parameter, by its annotation."""
    if parameter.name not in hints:
        return "untyped"
    hint = hints[parameter.name]
    if isinstance(hint, Unresolved):
        # Often imported for type checkers only.
        last = hint.text.rpartition(".")[2].strip("'\"")
        return "turn" if last in {turn.__name__ for turn in turns} else "typed"
    kinds = [kind for kind in arms(hint) if kind is not type(None)]
    return "turn" if kinds and all(_is_turn(kind, turns) for kind in kinds) else "typed"


def _is_turn(kind: Any, turns: tuple[type, ...]) -> bool:
    if not isinstance(kind, type) or kind is object:
        return False
    try:
        return any(issubclass(turn, kind) or issubclass(kind, turn) for turn in turns)
    except TypeError:  # a protocol without runtime checks
        return False


def _is_text(hint: Any) -> bool:
    return hint is str or (typing.get_origin(hint) is None and plain(hint) is str)


def _field(what: str, parameter: inspect.Parameter, hint: Any) -> Field | None:
    """Return the field for a parameter; ``None`` if its default cannot come from a message.

    Authors pass tools to a function with such defaults: ``def f(turn: Turn, lock: Lock = lock)``.
    """
    name, default = parameter.name, parameter.default
    if isinstance(hint, Unresolved):
        _refuse(
            what,
            f"has the parameter {name!r} of the type {hint.text!r}, which cannot be resolved "
            f"({hint.missing}); import it where the function is defined, outside of TYPE_CHECKING",
        )
    _check_default(what, parameter, hint)
    try:
        kind = ValueType(hint)
    except UnsupportedType as error:
        if default is not parameter.empty and not default_of(default):
            return None
        _refuse(what, f"has the parameter {name!r}, which a message cannot fill: {error}")
    return Field(name=name, type=kind, required=default is parameter.empty, default=default)


def _check_default(what: str, parameter: inspect.Parameter, hint: Any) -> None:
    """Reject a default that is a declaration and not a value, as in FastAPI."""
    declaration = type(parameter.default)
    module = declaration.__module__.partition(".")[0]
    if module == "fastapi" and declaration.__name__ == "Depends":
        _refuse(
            what,
            f"has the dependency {parameter.name!r}, and there is no dependency injection; "
            "call the function in the skill",
        )
    if module in _DECLARATIONS and declaration.__name__ in ("FieldInfo", "Meta", "Field", "Body"):
        _refuse(
            what,
            f"has a declaration as the default of {parameter.name!r}; write "
            f"{parameter.name}: Annotated[{_named(hint)}, ...] around it",
        )


def _order(parameters: list[inspect.Parameter]) -> tuple[tuple[str, Any], ...]:
    """Return the parameters that are filled by position, and their defaults."""
    return tuple((p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_ONLY)


def _refuse(what: str, problem: str) -> NoReturn:
    raise TypeError(f"{what} {problem}; {FORMS}")


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


_CONTENT = (str, bytes, bytearray, memoryview, Part, Artifact, Message, PurePath, Handoff)
_STREAMS = (collections.abc.AsyncIterable, collections.abc.Iterator)
_AWAITED = (collections.abc.Awaitable, collections.abc.Coroutine)
_NAMES = {kind.__name__ for kind in _CONTENT} | {
    "Path", "Any", "Iterator", "AsyncIterator", "Generator", "AsyncGenerator"
}  # fmt: skip


class BadResult(TypeError):
    """A function returned a value that does not fit its annotation."""


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
            return None  # the answer of an agent to which the conversation was handed over
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

    Text, bytes, parts, messages, artifacts, paths, nothing, streamed values, and types that can be
    anything promise no data, and neither does a union with any of them.

    Raises ``TypeError`` for an annotation that cannot be data, and for an unresolvable one.
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
            f"{what} returns a type that cannot be sent as data: {error}; or write -> object, "
            "which promises nothing"
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
