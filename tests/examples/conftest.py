"""The examples, served as a user serves them, and called by the public client."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

import parley
from tests.kit.servers import under_uvicorn

EXAMPLES = Path(__file__).parents[2] / "examples"

Serve = Callable[..., AbstractAsyncContextManager[parley.RemoteAgent]]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a fresh import of an example."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for each in EXAMPLES.glob("*.py"):  # another test may have loaded a module of this name
        monkeypatch.delitem(sys.modules, each.stem, raising=False)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    return lambda name: load(name, monkeypatch)


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def serving(
        agent: parley.Agent, store: str = "memory:"
    ) -> AsyncIterator[parley.RemoteAgent]:
        app = parley.asgi(agent, store=store, allow_private_agents=True)
        async with under_uvicorn(app) as url, parley.connect(url) as remote:
            yield remote

    return serving
