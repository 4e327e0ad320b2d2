"""Graphs of LangGraph as agents, alone or under the addresses of LangGraph's server.

``docs/guides/frameworks/langgraph.md`` shows both.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from langgraph.errors import GraphRecursionError
from langgraph.graph import StateGraph

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.langgraph.inputs import GraphSchemas, Resume
from parley.integrations.langgraph.running import Durability, ServedGraph
from parley.integrations.serving import described, framework_agent
from parley.llm.model import Json
from parley.llm.run_output import RunOutput

DEFAULT_NAME = "LangGraph"
"""The default name of a graph."""


def agent(
    graph: Any,
    *,
    name: str | None = None,
    description: str = "",
    config: Mapping[str, Any] | Callable[[Turn], Mapping[str, Any]] | None = None,
    context: Any = None,
    inputs: Callable[[Turn], Any] | None = None,
    resume: Resume | None = None,
    durability: Durability = "sync",
    **options: Any,
) -> Agent:
    """Return a graph as an agent.

    ``graph`` is a compiled graph, a ``StateGraph``, a workflow (``@entrypoint``), or a function
    (plain or async) that returns a graph or a context manager of a graph; a function is called when
    the server starts.

    The thread is the context, separate for each owner. The graph's own checkpointer is used;
    without one, checkpoints are kept with the context, in the store of the tasks. Interrupts are
    questions; ``resume`` is a function of the interrupt's value and the answer that returns the
    value to resume with, instead of the answer's data or text.

    ``config`` is the configuration of runs (``recursion_limit``, ``configurable``, ``callbacks``),
    or a function of the turn that returns it; ``context`` is the runtime context, or a function of
    the turn too; without it ``context_schema`` supplies defaults. ``inputs`` is a function of the
    turn that returns the graph's input. ``durability`` says when checkpoints are written: with
    ``"sync"`` a crash repeats no completed node. Other ``options`` are options of
    ``framework_agent`` and ``parley.Agent``.

    Raises ``TypeError`` for another object, ``ValueError`` for an invalid option.
    """
    served: ServedGraph | None = None
    settings = {
        "config": config, "context": context, "inputs": inputs, "resume": resume,
        "durability": durability,
    }  # fmt: skip
    if _is_graph(graph):
        served = ServedGraph(graph, **settings)
        name = name or _name_of(served.graph)
        tools = _tools_of(served.graph)
        if tools and not description:
            description = described("", name or DEFAULT_NAME, tools)
        options = {**_shown_on_the_card(served.schemas), **options}
    elif callable(graph):
        if options.get("lifespan") is not None:
            raise ValueError("a function that makes the graph is the lifespan; leave lifespan out")
        options["lifespan"] = _lifespan(graph, settings)
        name = name or getattr(graph, "__name__", "")
        description = description or inspect.getdoc(graph) or ""
    else:
        raise TypeError(
            f"{type(graph).__name__} is not a graph: give a compiled graph, a StateGraph, or a "
            "function that returns one"
        )

    async def run(turn: Turn, output: RunOutput) -> object:
        return await (served or turn.state).run(turn, output)

    return framework_agent(
        run, name=name or DEFAULT_NAME, description=description, told=TOLD, **options
    )


TOLD = ((GraphRecursionError, "", "The graph needs more steps than its recursion_limit allows."),)


def _is_graph(thing: Any) -> bool:
    return isinstance(thing, StateGraph) or hasattr(thing, "aget_state")


def _lifespan(
    make: Callable[..., Any], settings: Json
) -> Callable[[Agent], AbstractAsyncContextManager[ServedGraph]]:
    @asynccontextmanager
    async def opened(agent: Agent) -> AsyncIterator[ServedGraph]:
        needed = [each for each in inspect.signature(make).parameters.values() if _is_needed(each)]
        made = make({"configurable": {}}) if needed else make()  # LangGraph's server gives a config
        if inspect.isawaitable(made):
            made = await made
        async with AsyncExitStack() as stack:
            if hasattr(made, "__aenter__"):
                made = await stack.enter_async_context(made)
            elif hasattr(made, "__enter__"):
                made = stack.enter_context(made)
            yield ServedGraph(made, **settings)

    return opened


def _is_needed(parameter: inspect.Parameter) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind in kinds


def _name_of(graph: Any) -> str:
    name = str(getattr(graph, "name", "") or "")
    return "" if name == DEFAULT_NAME else name


def _tools_of(graph: Any) -> list[tuple[str, object]]:
    """Return the tools of a graph's nodes with their descriptions."""
    tools: Json = {}
    for node in getattr(graph, "nodes", {}).values():
        found = getattr(getattr(node, "bound", None), "tools_by_name", None)
        tools |= found if isinstance(found, dict) else {}
    return [(name, getattr(tool, "description", "")) for name, tool in tools.items()]


def _shown_on_the_card(schemas: GraphSchemas) -> Json:
    options: Json = {}
    if schemas.input is not None and not schemas.takes_messages:
        options["input_schema"] = schemas.input
    if schemas.returns_data and schemas.output is not None:
        options["output_schema"] = schemas.output
    return options


NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace of the ids that LangGraph's server derives from the names of graphs."""


def assistants(graphs: Mapping[str, Any] | str | Path, **options: Any) -> dict[str, Agent]:
    """Return graphs as agents, by their paths, for ``parley.serve`` and ``parley.asgi``.

        parley.serve(langgraph.assistants("langgraph.json"))

    A Parley server also has each agent under ``/a2a/<assistant id>``, and its card at
    ``/.well-known/agent-card.json?assistant_id=...``, like LangGraph's server. The id is the name
    of the graph, or the UUID that LangGraph's server derives from it, which is the agent's key.

    ``graphs`` are graphs by their assistant ids, or the file ``langgraph.json`` that names them:
    its ``graphs`` are read, each ``file.py:name`` or ``module:name``, relative to that file. The
    rest of the file is ignored. ``options`` are options of ``agent``.

    Raises ``ValueError`` for a file without graphs, ``OSError`` and ``ImportError`` for graphs that
    cannot be loaded.
    """
    if isinstance(graphs, Mapping):
        found = {assistant_id: (graph, "") for assistant_id, graph in graphs.items()}
    else:
        found = _graphs_in(Path(graphs))
    served: dict[str, Agent] = {}
    for assistant_id, (graph, description) in found.items():
        about = {"description": description, **options}
        about.setdefault("key", str(uuid5(NAMESPACE, assistant_id)))
        about.setdefault("name", _name_of(graph) or assistant_id)
        served[f"/{assistant_id}"] = agent(graph, **about)
    return served


def _graphs_in(path: Path) -> dict[str, tuple[Any, str]]:
    file = path / "langgraph.json" if path.is_dir() else path
    graphs = json.loads(file.read_text("utf-8")).get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise ValueError(f'{file} names no graphs: {{"graphs": {{"agent": "./agent.py:graph"}}}}')
    found = {}
    for assistant_id, where in graphs.items():
        given = where if isinstance(where, dict) else {"path": where}
        graph = _loaded(file.parent.resolve(), str(given.get("path", "")))
        found[assistant_id] = (graph, str(given.get("description") or ""))
    return found


def _loaded(folder: Path, where: str) -> Any:
    """Return the object of ``file.py:name`` or ``module:name``."""
    source, colon, name = where.rpartition(":")
    if not colon or not name.isidentifier():
        raise ValueError(f"{where!r} names no graph; write file.py:name, or module:name")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if not source.endswith(".py"):
        return getattr(importlib.import_module(source), name)
    file = (folder / source).resolve()
    module_name = f"parley_graph_{sha256(str(file).encode()).hexdigest()[:16]}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    return getattr(sys.modules[module_name], name)
