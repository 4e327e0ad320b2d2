"""Model endpoints, one of each kind for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from parley.llm.model import ModelRequest, Script, ScriptedReply
from parley.testing.model_endpoint import ModelEndpoint
from tests.llm.raw_endpoint import RawEndpoint


class Scripted:
    """An endpoint whose script a test sets."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        self._endpoint = endpoint
        self.script: Script = lambda request: "?"

    @property
    def url(self) -> str:
        return self._endpoint.url

    @property
    def requests(self) -> list[ModelRequest]:
        return self._endpoint.requests


@pytest.fixture(scope="module")
def _scripted() -> Iterator[Scripted]:
    held: list[Scripted] = []

    def script(request: ModelRequest) -> ScriptedReply | str:
        return held[0].script(request)  # type: ignore[return-value]

    with ModelEndpoint(script) as endpoint:
        held.append(Scripted(endpoint))
        yield held[0]


@pytest.fixture
def endpoint(_scripted: Scripted) -> Callable[[Script], Scripted]:
    """Set the script of an endpoint, and return the endpoint."""

    def follow(script: Script) -> Scripted:
        _scripted.script = script
        _scripted.requests.clear()
        return _scripted

    return follow


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEndpoint]:
    with RawEndpoint() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def _no_endpoint_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PARLEY_MODEL_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "PARLEY_MODEL"):
        monkeypatch.delenv(name, raising=False)
