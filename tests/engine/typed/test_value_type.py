"""Types as JSON: accepted values, rejected values, and the error messages."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pydantic
import pytest

from parley.model.typed.value_type import ValueType
from parley.model.typed.violations import MAX_VIOLATIONS, Mismatch, UnsupportedType

T = TypeVar("T")


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


@dataclass
class Stop:
    city: str
    nights: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass
class Trip:
    stops: list[Stop]
    currency: Currency
    when: datetime.datetime
    prices: dict[str, float] = field(default_factory=dict)
    home: Stop | None = None


class Tree(msgspec.Struct):
    name: str
    leaves: list[Tree] = []


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Camel(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    first_name: str

    def __post_init__(self) -> None:
        if self.first_name == "Nobody":
            raise ValueError("nobody is called Nobody")


class Renamed(msgspec.Struct):
    ab: int = msgspec.field(name="a.b")


class Model(pydantic.BaseModel):
    amount: int = pydantic.Field(gt=0)
    stop: Stop


class Box(msgspec.Struct, Generic[T]):
    item: T


def wrong(kind: Any, data: Any) -> list[tuple[str, str]]:
    """Return the violations of invalid data."""
    with pytest.raises(Mismatch) as caught:
        ValueType(kind).read(data)
    return [(each.field, each.description) for each in caught.value.violations]


@pytest.mark.parametrize(
    ("kind", "data", "violations"),
    [
        (Trip, {"stops": [{"city": 1}]}, [("stops[0].city", "expected text, got a number")]),
        (Trip, {"stops": [{"city": "x", "nights": 0}]},
         [("stops[0].nights", "expected an integer >= 1")]),
        (Trip, {"stops": [{"city": "x"}, {"nights": 2}]},
         [("stops[1].city", "required: text")]),
        (Trip, {"stops": [3]}, [("stops[0]", "expected an object, got a number")]),
        (Trip, {"stops": [{"city": 1}, {"city": 2}], "currency": "GBP"},
         [("stops[0].city", "expected text, got a number")]),
        (Trip, {"prices": {}}, [
            ("stops", "required: a list"),
            ("currency", 'required: one of "EUR", "USD"'),
            ("when", "required: a date and time such as 2026-01-31T12:00:00Z"),
        ]),
        (Trip, {"currency": "GBP"}, [("currency", 'expected one of "EUR", "USD"')]),
        (Trip, {"currency": 1}, [("currency", 'expected one of "EUR", "USD", got a number')]),
        (Trip, {"when": "soon"},
         [("when", "expected a date and time such as 2026-01-31T12:00:00Z")]),
        (Trip, {"prices": {"tea": "dear"}}, [("prices[...]", "expected a number, got text")]),
        (Trip, {"home": {"city": []}}, [("home.city", "expected text, got a list")]),
        (dict[str, Stop], {"a": {}}, [("[...].city", "required: text")]),
        (dict[int, int], {"a": 1}, [("$", "a key: expected an integer, got text")]),
        (Trip, [], [("$", "expected an object, got a list")]),
        (Model, {"amount": 0, "stop": {}},
         [("amount", "Input should be greater than 0"), ("stop.city", "Field required")]),
        (Box[int], {"item": "x"}, [("item", "expected an integer, got text")]),
        (Tree, {"name": "a", "leaves": [{}]}, [("leaves[0].name", "required: text")]),
        (Cat | Dog, {"type": "Dog"}, [("name", "required: text")]),
        (Camel, {"firstName": "Nobody"}, [("$", "nobody is called Nobody")]),
        (Camel, {"first_name": "x", "firstName": "a"},
         [("first_name", "unknown field; the fields are firstName")]),
        (tuple[int, str], [1, 2], [("[1]", "expected text, got a number")]),
        (tuple[int, str], [1], [("$", "expected a list of length 2, got 1")]),
        (int | str, [], [("$", "expected an integer or text, got a list")]),
        (bool, 1, [("$", "expected true or false, got a number")]),
        (Literal["only"], "x", [("$", 'expected "only"')]),
        (Cat | Dog, {"type": "Cow"}, [("type", 'expected "Cat" or "Dog"')]),
        (Renamed, {"a.b": "x"}, [("a.b", "expected an integer, got text")]),
        (Renamed, {"a.b": {"b": 1}}, [("a.b", "expected an integer, got an object")]),
        (Annotated[str, msgspec.Meta(pattern="^a$")], "b",
         [("$", "expected text matching regex '^a$'")]),
    ],
)  # fmt: skip
def test_a_violation_says_where_it_is_and_what_was_expected(
    kind: Any, data: Any, violations: list[tuple[str, str]]
) -> None:
    assert wrong(kind, data) == violations


def test_a_pydantic_model_within_a_struct_speaks_for_itself() -> None:
    class Order(msgspec.Struct):
        model: Model
        kind: Literal["a", "b"]

    assert wrong(Order, {"model": {"amount": 0, "stop": {}}, "kind": "c"}) == [
        ("model.amount", "Input should be greater than 0"),
        ("model.stop.city", "Field required"),
    ]
    assert wrong(Order, {"model": {"amount": 1, "stop": {"city": "x"}}, "kind": "c"}) == [
        ("kind", 'expected one of "a", "b"')
    ]
    assert ValueType(Order).schema["properties"]["model"]["required"] == ["amount", "stop"]
    assert "Stop" in ValueType(Order).schema["$defs"]


def test_violations_are_bounded() -> None:
    many = msgspec.defstruct("Many", [(f"field_{number}", int) for number in range(100)])
    assert len(wrong(many, {})) == MAX_VIOLATIONS
    assert len(wrong(list[Model], [{}] * 100)) == MAX_VIOLATIONS


def test_a_schema_stands_alone() -> None:
    schema = ValueType(Trip).schema
    assert schema["type"] == "object"
    assert schema["required"] == ["stops", "currency", "when"]
    assert schema["$defs"].keys() == {"Stop", "Currency"}
    assert "$ref" not in ValueType(Tree).schema
    assert ValueType(Tree).schema["$defs"].keys() == {"Tree"}


def test_a_schema_has_the_formats_of_times() -> None:
    @dataclass
    class Log:
        at: datetime.datetime
        maybe: datetime.time | None
        either: datetime.datetime | int
        many: list[datetime.datetime]
        named: dict[str, datetime.datetime]
        next: Trip | None = None

    schema = ValueType(Log).schema
    moment = {"type": "string", "format": "date-time"}
    properties = schema["properties"]
    assert properties["at"] == moment
    assert properties["maybe"]["anyOf"][0] == {"type": "string", "format": "time"}
    assert moment in properties["either"]["anyOf"]
    assert properties["many"]["items"] == properties["named"]["additionalProperties"] == moment
    assert schema["$defs"]["Trip"]["properties"]["when"] == moment
    assert ValueType(Tree).schema["$defs"].keys() == {"Tree"}
    assert ValueType(Annotated[datetime.datetime, msgspec.Meta(tz=True)]).schema == moment


@pytest.mark.parametrize("kind", [complex, object(), list[complex], Stop | Trip, dict[str, T]])
def test_a_type_without_a_json_form_is_refused(kind: Any) -> None:
    if kind == dict[str, T]:
        assert ValueType(kind).read({"a": 1}) == {"a": 1}  # of any type
        return
    with pytest.raises(UnsupportedType, match="use dataclasses, msgspec structs"):
        ValueType(kind)


def test_constraints_of_pydantic_are_not_lost_in_a_struct() -> None:
    class Order(msgspec.Struct):
        amount: Annotated[int, pydantic.Field(gt=0)]

    with pytest.raises(UnsupportedType, match=r"use msgspec\.Meta"):
        ValueType(Order)

    @dataclass
    class Purchase:
        amount: Annotated[int, pydantic.Field(gt=0)]

    assert wrong(Purchase, {"amount": 0}) == [("amount", "Input should be greater than 0")]


def test_a_dataclass_that_was_read_has_all_its_fields() -> None:
    @dataclass(frozen=True)
    class Frozen:
        stop: Stop
        size: int = 3

    value = ValueType(list[Frozen]).read([{"stop": {"city": "Rome"}}])[0]
    assert vars(value) == {"stop": Stop("Rome"), "size": 3}
    assert msgspec.to_builtins(value) == {"stop": {"city": "Rome", "nights": 1}, "size": 3}


def test_nan_is_no_result() -> None:
    with pytest.raises(Mismatch, match="JSON has no nan"):
        ValueType(dict[str, Any]).dump({"x": float("nan")})
    with pytest.raises(Mismatch, match="JSON has no nan"):
        ValueType(dict[str, Model | float]).dump({"x": float("nan")})


def test_a_result_is_checked_not_merely_written() -> None:
    with pytest.raises(Mismatch, match=r"city: expected text, got a number"):
        ValueType(Stop).dump(Stop(city=3))  # type: ignore[arg-type]
    for model in (
        Model.model_construct(amount=-1, stop=Stop("x")),
        Model.model_construct(amount="many", stop=Stop("x")),
    ):
        with pytest.raises(Mismatch, match="amount"):
            ValueType(Model).dump(model)
    assert ValueType(Model).dump(Model(amount=1, stop=Stop("x"))) == {
        "amount": 1,
        "stop": {"city": "x", "nights": 1},
    }
    assert ValueType(Model).dump({"amount": "1", "stop": {"city": "x"}})["amount"] == 1


def test_pydantic_results_are_written_by_alias_and_with_what_is_computed() -> None:
    class Priced(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        net: int = pydantic.Field(alias="netPrice")

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def gross(self) -> int:
            return self.net * 2

    kind = ValueType(Priced)
    assert kind.dump(Priced(netPrice=2)) == {"netPrice": 2, "gross": 4}
    assert kind.output_schema["required"] == ["netPrice", "gross"]
    assert kind.schema["required"] == ["netPrice"]


def test_more_errors_of_pydantic_than_can_be_shown_are_counted() -> None:
    class Rows(pydantic.BaseModel):
        rows: list[int]

    with pytest.raises(Mismatch, match=r"^\$: 5,000 values in it do not fit$"):
        ValueType(Rows).read({"rows": ["x"] * 5000})
