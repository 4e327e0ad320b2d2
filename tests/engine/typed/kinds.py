"""Record types, made at random, with JSON that fits them and JSON that does not."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import typing_extensions
from hypothesis import strategies as st


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Stop:
    city: str
    nights: int = 1


NAMES = ("amount", "currency", "when", "note", "stops", "size")

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.sampled_from([0.5, -2.25, 1e3 + 0.5])
    | st.sampled_from(["", "red", "blue", "x", "2026-01-31", "12"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*NAMES, "city", "nights"]), inner, max_size=3)
    ),
    max_leaves=4,
)

STOPS = st.fixed_dictionaries({"city": st.text(max_size=3)}, optional={"nights": st.integers(0, 9)})

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(10**6), 10**6),
    float: st.integers(-100, 100) | st.floats(-1e6, 1e6, allow_nan=False),
    str: st.text(max_size=4),
    bool: st.booleans(),
    Color: st.sampled_from(["red", "blue"]),
    Literal["small", "large"]: st.sampled_from(["small", "large"]),
    datetime.date: st.dates().map(str),
    list[int]: st.lists(st.integers(0, 9), max_size=3),
    dict[str, float]: st.dictionaries(st.text(max_size=2), st.floats(0, 9), max_size=2),
    int | None: st.none() | st.integers(0, 9),
    Stop: STOPS,
    list[Stop]: st.lists(STOPS, max_size=2),
    Stop | None: st.none() | STOPS,
}
"""The JSON of values of types that every maker of records knows."""

CONSTRAINED: dict[Any, st.SearchStrategy[Any]] = {
    Annotated[int, msgspec.Meta(ge=1, le=9)]: st.integers(1, 9),
    Annotated[str, msgspec.Meta(min_length=2)]: st.text(min_size=2, max_size=4),
}
"""The same, for types whose constraints are msgspec's."""

PYDANTIC: dict[Any, st.SearchStrategy[Any]] = {
    Annotated[int, pydantic.Field(ge=1, le=9)]: st.integers(1, 9),
    Annotated[str, pydantic.Field(min_length=2)]: st.text(min_size=2, max_size=4),
}
"""The same, for types whose constraints are pydantic's."""

DEFAULTS = {int: 3, str: "EUR", bool: False, int | None: None, Stop | None: None}


class Record:
    """A record type, and strategies for its JSON."""

    def __init__(self, kind: Any, fields: dict[str, Any], required: frozenset[str]) -> None:
        self.kind = kind
        self.fields = fields
        self.required = required
        known = VALUES | CONSTRAINED | PYDANTIC
        self.fitting = st.fixed_dictionaries(
            {name: known[kind] for name, kind in fields.items() if name in required},
            optional={name: known[kind] for name, kind in fields.items() if name not in required},
        )

    def __repr__(self) -> str:
        return f"{self.kind!r} of {self.fields!r}, required {sorted(self.required)}"


@st.composite
def records(draw: st.DrawFn, makers: tuple[str, ...]) -> Record:
    maker = draw(st.sampled_from(makers))
    extra = PYDANTIC if maker == "pydantic" else CONSTRAINED
    kinds = [*VALUES, *extra]
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    fields = {name: draw(st.sampled_from(kinds)) for name in names}
    has_default = {name: fields[name] in DEFAULTS and draw(st.booleans()) for name in names}
    names.sort(key=lambda name: has_default[name])
    fields = {name: fields[name] for name in names}
    required = frozenset(name for name in names if not has_default[name])
    return Record(made(maker, fields, required), fields, required)


def made(maker: str, fields: dict[str, Any], required: frozenset[str]) -> Any:
    optional = {name: DEFAULTS[kind] for name, kind in fields.items() if name not in required}
    if maker == "dataclass":
        described = [
            (name, kind, dataclasses.field(default=optional[name]))
            if name in optional
            else (name, kind)
            for name, kind in fields.items()
        ]
        return dataclasses.make_dataclass("Made", described)
    if maker in ("struct", "strict struct"):
        given = [
            (name, kind, optional[name]) if name in optional else (name, kind)
            for name, kind in fields.items()
        ]
        return msgspec.defstruct("Made", given, forbid_unknown_fields=maker == "strict struct")
    if maker == "TypedDict":
        members = {
            name: typing_extensions.NotRequired[kind] if name in optional else kind
            for name, kind in fields.items()
        }
        return typing_extensions.TypedDict("Made", members)
    config = pydantic.ConfigDict(strict=True)
    definitions: Any = {name: (kind, optional.get(name, ...)) for name, kind in fields.items()}
    return pydantic.create_model("Made", __config__=config, **definitions)
