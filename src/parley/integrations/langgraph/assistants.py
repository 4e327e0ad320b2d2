"""Graphs under the addresses that LangGraph's server has for them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from parley.agent.agent import Agent
from parley.integrations.langgraph.serving import agent

NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace of the ids that LangGraph's server makes of the names of graphs."""


def assistants(graphs: Mapping[str, Any] | str | Path, **options: Any) -> dict[str, Agent]:
    """Return graphs as agents, by their paths, for ``parley.serve`` and ``parley.asgi``.

        parley.serve(langgraph.assistants("langgraph.json"))

    A Parley server has each agent under ``/a2a/<assistant id>`` too, and its card at
    ``/.well-known/agent-card.json?assistant_id=...``, as LangGraph's server has them. The id is the
    name of the graph, or the UUID that LangGraph's server makes of it, which is the agent's key.

    ``graphs`` are graphs by their assistant ids, or the file ``langgraph.json`` that names them:
    its ``graphs`` are read, each ``file.py:name`` or ``module:name``, beside that file. Nothing
    else of the file is read. ``options`` are those of ``agent``.

    Raises ``ValueError`` for a file that names no graphs, ``OSError`` and ``ImportError`` for those
    that cannot be loaded.
    """
    found = graphs if isinstance(graphs, Mapping) else _graphs_in(Path(graphs))
    served: dict[str, Agent] = {}
    for assistant_id, graph in found.items():
        about = dict(options)
        if isinstance(graph, _Described):
            about.setdefault("description", graph.description)
            graph = graph.graph
        about.setdefault("key", str(uuid5(NAMESPACE, assistant_id)))
        name = str(getattr(graph, "name", "") or "")
        about.setdefault("name", assistant_id if name in ("", "LangGraph") else name)
        served[f"/{assistant_id}"] = agent(graph, **about)
    return served


class _Described:
    def __init__(self, graph: Any, description: str) -> None:
        self.graph = graph
        self.description = description


def _graphs_in(path: Path) -> dict[str, Any]:
    file = path / "langgraph.json" if path.is_dir() else path
    graphs = json.loads(file.read_text("utf-8")).get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise ValueError(f'{file} names no graphs: {{"graphs": {{"agent": "./agent.py:graph"}}}}')
    found = {}
    for assistant_id, where in graphs.items():
        given = where if isinstance(where, dict) else {"path": where}
        graph = _loaded(file.parent.resolve(), str(given.get("path", "")))
        found[assistant_id] = _Described(graph, str(given.get("description") or ""))
    return found


def _loaded(folder: Path, where: str) -> Any:
    """Return what ``file.py:name`` or ``module:name`` names."""
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
            raise ImportError(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    return getattr(sys.modules[module_name], name)
