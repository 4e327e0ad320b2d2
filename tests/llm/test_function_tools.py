"""Plain functions are tools: their schema from types and docstring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import pytest

from parley import Part
from parley.llm import FunctionTool, ToolFailed
from parley.llm.conversation import shortened, type_of
from parley.llm.function_tools import read_docstring

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    city: str
    country: str = "NO"


def weather(place: Place, days: int = 1, unit: Literal["C", "F"] = "C") -> dict[str, object]:
    """Tell the weather.

    Of any place there is.

    Args:
        place: where
        days (int): how many days
            from today on

    Returns:
        the weather
    """
    return {"place": place.city, "country": place.country, "days": days, "unit": unit}


async def test_schema_and_description() -> None:
    tool = FunctionTool(weather)
    assert tool.name == "weather"
    assert tool.description == "Tell the weather.\n\nOf any place there is."
    properties = tool.parameters["properties"]
    assert properties["place"]["description"] == "where"
    assert properties["days"]["description"] == "how many days from today on"
    assert properties["unit"]["enum"] == ["C", "F"]
    assert tool.parameters["required"] == ["place"]
    result = await tool.call({"place": {"city": "Oslo"}, "days": 2})
    assert result.data == {"place": "Oslo", "country": "NO", "days": 2, "unit": "C"}


def sphinx(city: str) -> str:
    """Tell.

    :param city: which city
    :returns: nothing
    """
    return city


def numpy(city: str, days: int) -> str:
    """Tell.

    Parameters
    ----------
    city : str
        which city
    days : int
        how many
        days
    """
    return city


def annotated(city: Annotated[str, msgspec.Meta(description="which city")]) -> str:
    """Tell."""
    return city


@pytest.mark.parametrize("function", [sphinx, numpy, annotated])
def test_descriptions_of_parameters(function) -> None:
    tool = FunctionTool(function)
    assert tool.description == "Tell."
    assert tool.parameters["properties"]["city"]["description"] == "which city"


async def test_arguments_that_do_not_fit_are_a_result_that_names_each() -> None:
    result = await FunctionTool(weather).call({"place": {}, "days": "many", "unit": "K"})
    assert result.is_error
    assert "place.city" in result.text
    assert "days" in result.text
    assert "unit" in result.text


async def test_what_a_function_returns() -> None:
    def nothing() -> None: ...

    def image() -> Part:
        return Part(raw=b"png", media_type="image/png", filename="a.png")

    def number() -> float:
        return 1.5

    async def place() -> Place:
        return Place("Oslo")

    assert (await FunctionTool(nothing).call({})).text == "done"
    assert (await FunctionTool(image).call({})).parts[0].raw == b"png"
    assert (await FunctionTool(number).call({})).text == "1.5"
    assert (await FunctionTool(place).call({})).data == {"city": "Oslo", "country": "NO"}


async def test_errors_that_are_meant_for_the_model_and_others(caplog) -> None:
    def meant() -> str:
        raise ToolFailed("the shop is closed")

    def wrong() -> str:
        raise ValueError("no such city")

    def bug() -> str:
        raise KeyError("password=1234")

    for function in (meant, wrong, bug):
        result = await FunctionTool(function).call({})
        assert result.is_error
        assert "1234" not in result.text
    assert (await FunctionTool(meant).call({})).text == "the shop is closed"
    assert (await FunctionTool(wrong).call({})).text == "no such city"
    assert "password" in caplog.text


def test_what_cannot_be_a_tool() -> None:
    def untyped(city):
        return city

    def any_number(*cities: str) -> str:
        return ""

    def yields() -> object:
        yield 1

    for function, match in [
        (untyped, "write its type"), (any_number, "which a model cannot fill"), (yields, "yields"),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=match):
            FunctionTool(function)
    with pytest.raises(TypeError, match="a tool must be a function"):
        FunctionTool("https://example.com")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "{}Params:\n  city: which\n    city",
        "{}Arguments:\n  city: which\n\n    city",
        "{}Parameters\n---\ncity\n  which city\n\nReturns\n---\nday",
        "{}:returns: a day\n:param city: which\n  city",
    ],
)
def test_a_docstring_describes_each_parameter(text: str) -> None:
    assert read_docstring(text.format("Tell.\n\n")) == ("Tell.", {"city": "which city"})


def test_a_file_has_the_type_of_its_name() -> None:
    files = [Part(raw=b"", filename="a.png"), Part(url="http://a/b.png"), Part(raw=b"")]
    assert [*map(type_of, files)] == ["image/png", "image/png", "application/octet-stream"]
    assert shortened("abc", 3) == "abc"
