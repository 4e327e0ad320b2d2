"""Stored values of functions: they come back equal and of the same type, or fail at once."""

from __future__ import annotations

import dataclasses
import enum
import math
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import Agent, Turn
from parley.engine.content import kept, read
from parley.model.tasks import TaskState
from parley.store.events import RecordKind


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Booking:
    nights: int
    guests: tuple[str, ...] = ()


class Seat(msgspec.Struct):
    row: int
    window: bool = False


class Place(NamedTuple):
    x: int
    y: float


class Model(pydantic.BaseModel):
    name: str
    at: datetime


class Text(str):
    """A subclass of ``str``."""


class Custom:
    """A type without a serializer."""


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
ODD = st.one_of(
    st.binary(),
    st.floats(),
    st.text(alphabet=st.characters()).map(Text),
    st.text(alphabet=st.characters(categories=["Cs"]), min_size=1),
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.complex_numbers(),
    st.sampled_from([Colour.RED, Level.HIGH, Custom(), Custom, Booking(1), Seat(2), Place(1, 2.0)]),
    st.sampled_from([Model(name="x", at=datetime(2026, 1, 1)), OrderedDict(a=1), range(3)]),
)
ANYTHING = st.recursive(
    PLAIN | ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text() | st.integers() | st.booleans() | st.none(), inner, max_size=3),
        st.frozensets(st.integers() | st.text() | st.binary(), max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=12,
)


def same(one: object, other: object) -> bool:
    """Compare two values and their types, at every depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(
            same(one[key], other[key]) for key in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


@pytest.mark.slow
@given(
    st.sampled_from([Any, list, dict, dict[int, Any], tuple, set, str, int, float, Booking, None])
    | st.sampled_from([Seat, bytes, datetime, Decimal, object, list[tuple[int, ...]], Custom]),
    ANYTHING,
)
def test_whatever_a_function_says_it_returns_its_result_is_refused_or_the_same(
    kind: Any, value: Any
) -> None:
    try:
        data = kept(value, kind, what="it")
    except TypeError:
        return
    back = read(data, kind)
    assert same(back, value) or (type(back) is float and back == value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tuple[int, str], (1, "a")),
        (list[tuple[int, ...]], [(1,), (2, 3)]),
        (dict[int, str], {1: "a"}),
        (set[int], {1, 2}),
        (frozenset[str], frozenset("ab")),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        (date, date(2026, 1, 2)),
        (timedelta, timedelta(seconds=1.5)),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=7)),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Booking, Booking(2, ("ada", "bob"))),
        (list[Booking], [Booking(2)]),
        (Booking | None, None),
        (Seat, Seat(3, True)),
        (Place, Place(1, 2.5)),
        (Model, Model(name="a", at=datetime(2026, 1, 1))),
        (dict[str, Any], {"a": [1, None]}),
    ],
)
def test_what_a_function_says_it_returns_comes_back_as_that(kind: Any, value: Any) -> None:
    back = read(kept(value, kind, what="it"), kind)
    assert type(back) is type(value)
    assert back == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"items": [1, (2, 3)]}, r"the tuple at \.items\[1\] does not read back as one; .* a list"),
        ((1,), r"it: the tuple does not read back as one; use a list"),
        ({"a b": b"x"}, r"the bytes at \['a b'\] .* base64"),
        ({"a": {5: 1}}, r"the key 5 at \.a is not text, and JSON has no other keys; use '5'"),
        ({1, 2}, "the set does not read back as one; use a list"),
        ([math.nan], r"JSON has no nan at \[0\]; use None, or text"),
        (math.inf, "JSON has no inf"),
        (datetime(2026, 1, 1), "the datetime does not read back as one; use a JSON value: dict"),
        (Colour.RED, "the Colour does not read back as one; use a plain str"),
        (OrderedDict(a=1), "the OrderedDict .* use a plain dict"),
        (namedtuple("P", "x")(1), "the P does not read back as one"),
        (Custom(), "the Custom does not read back as one"),
        ("\ud800", "half a surrogate pair"),
    ],
)
def test_a_refusal_says_where_and_what_would_be_right(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        kept(value, what="it")


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (dict, {"a": (1,)}, r"the tuple at \.a reads back as list; declare the type that it has"),
        (Booking, Booking(2, ["ada"]), r"the list at \.guests reads back as tuple"),  # type: ignore[arg-type]
        (int, "one", "does not read back as int: Expected `int`, got `str`"),
        (type(None), 1, "does not read back as NoneType"),
        (Custom, Custom(), "does not read back as Custom"),
        (dict, {"a": math.nan}, r"JSON has no nan at \.a"),
    ],
)
def test_a_result_that_is_not_what_its_function_says_is_refused(
    kind: Any, value: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        kept(value, kind, what="it")


@pytest.mark.anyio
async def test_a_step_returns_the_same_in_the_first_run_and_in_the_next(
    talk: Callable[..., Any],
) -> None:
    agent, seen = Agent("Steps"), []

    def booked() -> Booking:
        return Booking(2, ("ada",))

    async def when() -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    @agent.skill(replies="task")
    async def steps(turn: Turn) -> str:
        seen.append(
            [
                await turn.step("booked", booked),
                await turn.step("when", when),
                await turn.step("plain", lambda: {"a": [1, 2.0, None]}),
            ]
        )
        await turn.ask("Again?")
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        await caller.task("yes", task_id=task.id)
    first, second = seen
    assert first == second == [Booking(2, ("ada",)), await when(), {"a": [1, 2.0, None]}]
    assert [type(value) for value in first] == [type(value) for value in second]


@pytest.mark.anyio
async def test_a_step_whose_result_would_change_says_so_and_remembers_nothing(
    talk: Callable[..., Any],
) -> None:
    agent, told = Agent("Steps"), []

    @agent.skill(replies="task")
    async def steps(turn: Turn) -> str:
        for value in ({"items": (1, 2)}, Custom(), b"x"):
            with pytest.raises(TypeError) as raised:
                await turn.step(f"step-{len(told)}", lambda value=value: value)  # type: ignore[misc]
            told.append(str(raised.value))
        with pytest.raises(TypeError, match=r"the value remembered as 'x': the tuple at \.a"):
            await turn.remember("x", {"a": ()})
        with pytest.raises(TypeError, match="the value remembered as 'x': the Booking"):
            await turn.remember("x", Booking(1))
        assert await turn.recall("x") is None
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        assert task.state is TaskState.COMPLETED, task.status
        assert not await caller.store.private_records(task.id, [RecordKind.REMEMBERED])
    assert told[0] == (
        "step 'step-0' returned a dict: the tuple at .items does not read back as one; "
        "use a list, or declare what the function returns"
    )
