"""The signature of a function determines how its parameters are filled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import fastapi
import msgspec
import pydantic
import pytest

from parley import Agent, Artifact, BlockingTurn, Message, Part, Turn
from parley.agent.turn_facts import TurnFacts
from parley.engine.typed.function import parameters_of, result_of
from parley.engine.typed.inputs import Inputs
from parley.model.parts import Role
from parley.model.typed.violations import Mismatch

if TYPE_CHECKING:
    from somewhere import Hidden  # type: ignore[import-not-found]

    from parley.agent.turn import Turn as HiddenTurn

TURNS = (Turn, BlockingTurn)


@dataclass
class Conversion:
    amount: float
    currency: str = "EUR"


def message(text: str = "", data: Any = msgspec.UNSET) -> Message:
    parts = [Part(text=text)] if text else []
    if data is not msgspec.UNSET:
        parts.append(Part(data=data))
    return Message(message_id="m", role=Role.USER, parts=parts or [Part(raw=b"file")])


def inputs_of(function: Callable[..., Any]) -> Inputs:
    takes, inputs = parameters_of(function, TURNS)
    assert takes == "typed"
    assert inputs is not None
    return inputs


def called(function: Callable[..., Any], said: Message) -> Any:
    """Call a function as a turn does."""
    inputs = inputs_of(function)
    by_position, by_name = inputs.arguments(inputs.read(said), "the turn", said.text)
    return function(*by_position, **by_name)


# -- plain parameters --------------------------------------------------------------------------


def test_turns_and_a_single_text_are_recognized() -> None:
    def turn(turn: Turn) -> None: ...
    def facts(turn: TurnFacts) -> None: ...
    def either(turn: Turn | BlockingTurn) -> None: ...
    def maybe(turn: Turn | None = None) -> None: ...
    def hidden(turn: HiddenTurn) -> None: ...
    def anything(turn: Any) -> None: ...
    def something(turn: object) -> None: ...
    def text(text: str) -> None: ...

    for function in (turn, facts, either, maybe, anything, something):
        assert parameters_of(function, TURNS)[0] == "turn", function
    assert parameters_of(text, TURNS)[0] == "text"
    with pytest.raises(TypeError, match=r"'HiddenTurn'.*cannot be resolved"):
        parameters_of(hidden, TURNS)


def test_a_turn_that_is_imported_for_type_checkers_alone_is_a_turn() -> None:
    def hidden(turn: no_module.Turn) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert parameters_of(hidden, TURNS)[0] == "turn"


# -- typed -------------------------------------------------------------------------------------


def test_one_object_is_the_data_of_the_message() -> None:
    def convert(request: Conversion) -> Conversion:
        return request

    assert called(convert, message(data={"amount": 3})) == Conversion(3.0)
    assert called(convert, message('{"amount": 3, "currency": "USD"}')) == Conversion(3.0, "USD")
    assert called(convert, message('{"amount": 4}', {"amount": 3})) == Conversion(3.0)
    assert inputs_of(convert).schema == {
        "title": "Conversion",
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "currency": {"type": "string", "default": "EUR"},
        },
        "required": ["amount"],
    }


def test_plain_parameters_are_members_and_defaults_apply() -> None:
    def convert(amount: float, currency: Literal["EUR", "USD"] = "EUR") -> tuple[float, str]:
        return amount, currency

    assert called(convert, message(data={"amount": 3})) == (3.0, "EUR")
    assert called(convert, message(data={"amount": 3, "currency": "USD", "x": 1})) == (3.0, "USD")
    assert inputs_of(convert).schema == {
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "currency": {"enum": ["EUR", "USD"], "default": "EUR"},
        },
        "required": ["amount"],
    }
    with pytest.raises(Mismatch) as caught:
        inputs_of(convert).read(message(data={"currency": "GBP"}))
    assert [tuple(each) for each in caught.value.fields] == [
        ("amount", "required: a number"),
        ("currency", 'expected one of "EUR", "USD"'),
    ]


def test_a_default_that_is_no_data_stays_what_it_is() -> None:
    lock = object()

    class Lock:
        pass

    def locked(turn: Turn, amount: float, lock: Lock = lock) -> Any:  # type: ignore[assignment]
        return amount, lock

    def only(turn: Turn, lock: Lock = lock) -> Any:  # type: ignore[assignment]
        return lock

    def maybe(turn: Turn, lock: Lock | None = None) -> Any:
        return lock

    assert called(locked, message(data={"amount": 1, "lock": 2})) == (1.0, lock)
    assert "lock" not in str(inputs_of(locked).schema)
    assert called(only, message("x")) is lock
    with pytest.raises(TypeError, match="'lock', which a message cannot fill"):
        parameters_of(maybe, TURNS)


def test_the_turn_alone_may_be_taken_by_name() -> None:
    def by_name(*, turn: Turn) -> Any:
        return turn

    assert called(by_name, message("x")) == "the turn"
    assert inputs_of(by_name).schema is None


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (message("4"), 4),
        (message(" 4 "), 4),
        (message(data=5), 5),
        (message(data={"n": 6}), 6),
        (message('{"n": 7}'), 7),
    ],
)
def test_one_plain_parameter_is_the_value_alone_or_a_member(said: Message, value: int) -> None:
    def square(n: int) -> int:
        return n

    assert called(square, said) == value


def test_one_list_is_the_data_or_a_member() -> None:
    def total(items: list[int]) -> int:
        return sum(items)

    assert called(total, message(data=[1, 2])) == 3
    assert called(total, message("[1, 2]")) == 3
    assert called(total, message(data={"items": [1, 2]})) == 3
    with pytest.raises(Mismatch, match=r"items\[1\]: expected an integer, got text"):
        inputs_of(total).read(message(data=[1, "x"]))
    with pytest.raises(Mismatch, match=r"items: required: a list"):
        inputs_of(total).read(message(data={}))


def test_prose_is_no_input_unless_the_function_can_see_it() -> None:
    def blind(detail: bool = False, more: int = 1) -> Any:
        return detail

    def seeing(turn: Turn, detail: bool = False) -> Any:
        return detail

    with pytest.raises(Mismatch, match=r"\$: expected a data part, or text that is a JSON object"):
        inputs_of(blind).read(message("Write a report"))
    assert called(seeing, message("Write a report")) is False
    assert called(seeing, message("Write a report", {"detail": True})) is True
    assert called(blind, message()) is False  # a file alone


def test_pydantic_and_msgspec_types_stand_side_by_side() -> None:
    class Stop(pydantic.BaseModel):
        city: str

    class Other:
        class Stop(msgspec.Struct):
            nights: int

    def plan(
        first: Stop,
        second: Other.Stop,
        count: Annotated[int, pydantic.Field(gt=0)],
        size: Annotated[int, msgspec.Meta(lt=9)] = 1,
    ) -> Any:
        return first.city, second.nights, count, size

    data = {"first": {"city": "Rome"}, "second": {"nights": 2}, "count": 1}
    assert called(plan, message(data=data)) == ("Rome", 2, 1, 1)
    with pytest.raises(Mismatch) as caught:
        inputs_of(plan).read(message(data={"first": {}, "second": {}, "count": 0, "size": 10}))
    assert [tuple(each) for each in caught.value.fields] == [
        ("first.city", "Field required"),
        ("second.nights", "required: an integer"),
        ("count", "Input should be greater than 0"),
        ("size", "expected an integer <= 8"),
    ]


# -- rejected signatures -----------------------------------------------------------------------


def two_turns(turn: Turn, other: BlockingTurn) -> None: ...
def two_turns_beside(turn: Turn, other: Turn, n: int) -> None: ...
def anything_more(request: Conversion, *args: Any) -> None: ...
def any_names(request: Conversion, **kwargs: int) -> None: ...
def typed_args(*numbers: int) -> None: ...
def untyped(turn: Turn, amount) -> None: ...  # type: ignore[no-untyped-def]
def untyped_both(a, b) -> None: ...  # type: ignore[no-untyped-def]
def untyped_name(*, amount) -> None: ...  # type: ignore[no-untyped-def]
def unsupported(turn: Turn, lock: complex) -> None: ...
def hidden(request: Hidden) -> None: ...
def unresolved(request: list[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def declared(amount: float = pydantic.Field(gt=0)) -> None: ...
def declared_meta(amount: float = msgspec.Meta(gt=0)) -> None: ...  # type: ignore[assignment]
def depends(x: int, db: int = fastapi.Depends(int)) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (two_turns, "takes the turn twice, as 'turn' and 'other'"),
        (two_turns_beside, "takes the turn twice"),
        (anything_more, r"takes \*args: Any|takes \*args"),
        (any_names, r"takes \*\*kwargs"),
        (typed_args, r"takes \*numbers"),
        (untyped, "needs 2 arguments; write the type of 'amount'"),
        (untyped_both, "needs 2 arguments; write the type of 'b'"),
        (untyped_name, "does not say what 'amount' is: write its type"),
        (unsupported, "'lock', which a message cannot fill: complex"),
        (hidden, r"'Hidden', which cannot be resolved .*outside of TYPE_CHECKING"),
        (unresolved, "name 'Nowhere' is not defined"),
        (declared, r"write amount: Annotated\[float, ...\]"),
        (declared_meta, r"write amount: Annotated\[float, ...\]"),
        (depends, "no dependency injection"),
    ],
)
def test_a_function_whose_parameters_cannot_be_filled_is_refused_when_registered(
    function: Callable[..., Any], reason: str
) -> None:
    agent = Agent("Strict")
    with pytest.raises(TypeError, match=reason) as caught:
        agent.skill(function)
    assert f"the skill {function.__name__!r}" in str(caught.value)
    assert "def f(turn: Turn, request: Conversion)" in str(caught.value)
    assert not agent.skills


# -- results -----------------------------------------------------------------------------------


def test_content_promises_no_data() -> None:
    def text() -> str: ...  # type: ignore[empty-body]
    def raw() -> bytes: ...  # type: ignore[empty-body]
    def part() -> Part: ...  # type: ignore[empty-body]
    def parts() -> list[Part]: ...  # type: ignore[empty-body]
    def artifact() -> Artifact: ...  # type: ignore[empty-body]
    def direct() -> Message: ...  # type: ignore[empty-body]
    def path() -> Path: ...  # type: ignore[empty-body]
    def nothing() -> None: ...
    def streams() -> AsyncIterator[int]: ...  # type: ignore[empty-body]
    def anything() -> Any: ...
    def something() -> object: ...
    def unsaid(): ...  # type: ignore[no-untyped-def]
    def either() -> Conversion | str: ...  # type: ignore[empty-body]
    def maybe() -> str | None: ...
    def items() -> list[Any]: ...  # type: ignore[empty-body]
    def later() -> Awaitable[str]: ...  # type: ignore[empty-body]

    for function in (text, raw, part, parts, artifact, direct, path, nothing, streams, anything,
                     something, unsaid, either, maybe, items, later):  # fmt: skip
        assert result_of(function) is None, function


def test_a_return_annotation_gives_the_schema_of_the_result() -> None:
    def one() -> Conversion: ...  # type: ignore[empty-body]
    def maybe() -> Conversion | None: ...
    def later() -> Awaitable[Conversion]: ...  # type: ignore[empty-body]
    def many() -> list[Conversion]: ...  # type: ignore[empty-body]
    def number() -> float: ...  # type: ignore[empty-body]
    def mapping() -> dict[str, int]: ...  # type: ignore[empty-body]

    for function in (one, maybe, later):
        result = result_of(function)
        assert result is not None
        assert result.schema["title"] == "Conversion"
        assert result.dump(Conversion(1.0)) == {"amount": 1.0, "currency": "EUR"}
    for function, kind in ((many, "array"), (number, "number"), (mapping, "object")):
        result = result_of(function)
        assert result is not None
        assert result.schema["type"] == kind


def test_a_result_that_cannot_be_data_is_refused_when_registered() -> None:
    def lock() -> complex: ...  # type: ignore[empty-body]
    def unresolved() -> Hidden: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match=r"complex has no JSON form.*-> object"):
        Agent("A").skill(lock)
    with pytest.raises(TypeError, match="'Hidden', which cannot be resolved"):
        Agent("A").skill(unresolved)


def test_asking_for_input_that_cannot_be_invalid_is_refused() -> None:
    agent = Agent("Asking")

    def plain(turn: Turn) -> None: ...
    def typed(n: int) -> None: ...

    with pytest.raises(ValueError, match="no typed parameters"):
        agent.skill(invalid_input="ask")(plain)
    with pytest.raises(ValueError, match="needs a task"):
        agent.skill(invalid_input="ask", replies="message")(typed)
    with pytest.raises(ValueError, match="'refuse' or 'ask'"):
        agent.skill(invalid_input="guess")(typed)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="neither application/json nor text/plain"):
        agent.skill(input_modes=["image/png"])(typed)
