"""Bindings that are added to a server: rejected ones, and rules that hold for all bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails
from parley.envelope.binding import EnvelopeBinding
from parley.host.in_process import AppNotStarted
from parley.model.errors import A2AError, InternalError

pytestmark = pytest.mark.anyio


class Added:
    """A binding, for a server and its agents, that answers no request."""

    record: Mapping[str, Any] = {}
    protocol = "urn:example:added:v1"
    refuses_unsigned = False

    def __init__(self, name: str = "added", path: str = "/added") -> None:
        self.name = name
        self.path = path
        self.closed = self.started = 0
        self.fails = False

    def bind(self, parts: object) -> Added:
        return self

    def of(self, agent: object) -> Added:
        return self

    def serve(self, app: object, endpoints: object) -> None: ...

    async def start(self) -> None:
        self.started += 1
        if self.fails:
            raise ValueError("it cannot be served")

    async def close(self) -> None:
        self.closed += 1
        raise RuntimeError("it cannot be closed")

    def handler(self, place: object) -> Any:
        return None

    def pages(self, place: object) -> Mapping[str, Any]:
        return {}

    def refuse(self) -> A2AError:
        return InternalError("never")


def hello(**options: Any) -> Agent:
    agent = Agent("Hello", **options)

    @agent.skill
    def greet(name: str) -> str:
        return f"Hello, {name}"

    return agent


@pytest.mark.parametrize("path", ["added", "/", "/a/b", "/envelope"])
def test_a_path_that_no_request_could_reach_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="a path is one segment"):
        parley.asgi(hello(), bindings=[Added(path=path)])


def test_the_same_binding_twice_and_what_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        parley.asgi(hello(), bindings=[EnvelopeBinding(), EnvelopeBinding()])
    for given in (["envelope"], EnvelopeBinding(), "envelope"):
        with pytest.raises(TypeError, match="bindings is a list of bindings"):
            parley.asgi(hello(), bindings=given)  # type: ignore[arg-type]


def test_an_interface_of_a_binding_that_is_not_there_cannot_be_listed() -> None:
    listed = {"urn:example:added:v1": False}
    with pytest.raises(ValueError, match="does not have here"):
        parley.asgi(hello(card=CardDetails(listed_interfaces=listed)))
    parley.asgi(hello(card=CardDetails(listed_interfaces=listed)), bindings=[Added()])


async def test_a_binding_starts_after_its_server_and_undoes_that_when_it_fails() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def watched(agent: Agent) -> AsyncIterator[None]:
        steps.append("agent starts")
        if len(steps) == 1:
            raise RuntimeError("no database")
        yield
        steps.append("agent stops")

    added = Added()
    with pytest.raises(AppNotStarted, match="no database"):
        async with parley.connect(parley.asgi(hello(lifespan=watched), bindings=[added])):
            pass
    assert (added.started, added.closed) == (0, 0)
    added.fails = True
    with pytest.raises(AppNotStarted):
        async with parley.connect(parley.asgi(hello(lifespan=watched), bindings=[added])):
            pass
    assert (added.started, added.closed) == (1, 1)
    assert steps == ["agent starts", "agent starts", "agent stops"]


async def test_a_binding_that_fails_to_close_leaves_nothing_else_open() -> None:
    first, second = Added("first", "/first"), Added("second", "/second")
    left: list[str] = []

    @asynccontextmanager
    async def lifespan(agent: Agent) -> AsyncIterator[None]:
        yield
        left.append(agent.name)

    app = parley.asgi(hello(lifespan=lifespan), bindings=[first, second])
    with pytest.raises(RuntimeError, match="cannot be closed"):
        async with app.lifespan(app):
            pass
    assert (first.closed, second.closed, left) == (1, 1, ["Hello"])
