"""The pytest plugin: ``parley_client``, ``parley_cassette``, and readable differences in
assertions.

pytest loads it in every run where Parley is installed, so it imports nothing of Parley until a test
uses it. It works with anyio and with pytest-asyncio, and needs neither.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parley.testing.cassettes import Cassette
    from parley.testing.in_process_client import Client


@pytest.fixture
def parley_client(request: pytest.FixtureRequest) -> Callable[..., Client]:
    """Return ``parley.testing.client`` for this test; clients left open are closed when the test
    ends.

        async def test_it_greets(parley_client):
            remote = await parley_client(agent)
            assert (await remote.send("I am Ada")).text == "Hello!"
    """
    from parley.testing.in_process_client import client

    made: list[Client] = []

    @wraps(client)
    def make(*args: Any, **options: Any) -> Client:
        made.append(client(*args, **options))
        return made[-1]

    test = getattr(request.node, "obj", None)
    if inspect.iscoroutinefunction(test):

        @wraps(test)
        async def closing(*args: Any, **values: Any) -> Any:
            try:
                return await test(*args, **values)
            finally:
                for each in reversed(made):
                    await each.aclose()

        request.node.obj = closing  # either async plugin runs it on the test's event loop
    return make


@pytest.fixture
def parley_cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """Run the test inside ``parley.testing.cassette``, with a file named after the test.

    The file is in ``cassettes/`` next to the test file. PARLEY_CASSETTES chooses the mode.

        async def test_it_books(parley_cassette):
            async with parley.connect("https://agents.example.com") as agent:
                assert (await agent.send("A room in Rome")).text == "Room 7"
    """
    from parley.testing.cassettes import cassette

    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    with cassette(request.path.parent / "cassettes" / request.path.stem / f"{name}.json") as tape:
        yield tape


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain why events do not equal the matchers of an assertion."""
    import sys

    matchers = sys.modules.get("parley.testing.matchers")
    if matchers is None or op != "==":
        return None
    kind = matchers.Matcher
    if isinstance(right, kind):
        return [f"{matchers.describe(left)} == {right!r}", *right.differences(left)]
    if isinstance(left, kind):
        return [f"{left!r} == {matchers.describe(right)}", *left.differences(right)]
    for came, expected in ((left, right), (right, left)):
        are_lists = isinstance(came, list | tuple) and isinstance(expected, list | tuple)
        if are_lists and any([isinstance(each, kind) for each in expected]):  # type: ignore[attr-defined]
            from parley.testing.matchers import difference

            return ["the events are those expected", *difference(came, expected)]  # type: ignore[arg-type]
    return None
