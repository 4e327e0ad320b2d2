"""What is said in the log when a server starts, in a line each, and could surprise later."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from parley.engine.description import AgentDescription
from parley.store.memory import MemoryTaskStore
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.host")

_WORKERS = re.compile(r"(?:--workers(?:=|$)|-w=?)(\d*)")


def log_startup(store: TaskStore, agents: Sequence[AgentDescription]) -> None:
    """Say when ended tasks are removed, and that several processes share no memory."""
    removed = removed_after(agents)
    if removed:
        log.info("tasks are removed with all that is theirs when they have ended %s", removed)
    if isinstance(store, MemoryTaskStore) and not store.is_shared and (why := several_workers()):
        log.warning(
            "this is one of several worker processes (%s), and memory: keeps tasks in each for "
            "itself: what one began, the others do not know; use one worker, or a store that "
            "processes share, postgresql://host/database",
            why,
        )


def removed_after(agents: Sequence[AgentDescription]) -> str:
    """Return when the tasks of agents are removed, in words; nothing where none are."""
    names: dict[timedelta, list[str]] = {}
    for agent in agents:
        if agent.retention is not None:
            names.setdefault(agent.retention, []).append(agent.name)
    spans = sorted(names)
    if not spans:
        return ""
    if len(names[spans[0]]) == len(agents):
        told = _span(spans[0])
    else:
        told = ", ".join(f"{_span(span)} ({', '.join(names[span])})" for span in spans)
    return f"for {told}; Agent(retention=...) says how long they are kept, None for ever"


def several_workers(environ: Mapping[str, str] = os.environ) -> str:
    """Return by what this process is known to be one of several that serve the same app.

    Nothing where it is alone, or nobody can tell: what reloads on changes is one process behind
    another.
    """
    child = multiprocessing.parent_process() and multiprocessing.current_process()
    # What uvicorn gave the process to do; there is no other way to know.
    config: Any = (getattr(child, "_kwargs", None) or {}).get("config")
    if type(config).__module__ == "uvicorn.config":
        is_alone = config.should_reload or config.workers < 2
        return "" if is_alone else f"uvicorn has {config.workers}"
    if environ.get("SERVER_SOFTWARE", "").startswith("gunicorn"):
        given = [*shlex.split(environ.get("GUNICORN_CMD_ARGS", "")), *sys.argv[1:]]
        count = _asked_for(given) or _number(environ.get("WEB_CONCURRENCY", ""))
        return f"gunicorn has {count}" if count > 1 else ""
    if child and (count := _asked_for(sys.argv[1:])) > 1 and "--reload" not in sys.argv:
        return f"--workers {count}"
    return ""


def _asked_for(arguments: Sequence[str]) -> int:
    """Return the number of workers that a command line asks for, 0 where it says nothing."""
    found = 0
    for argument, following in itertools.pairwise([*arguments, ""]):
        match = _WORKERS.fullmatch(argument)
        if match:
            found = _number(match[1] or following)
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _span(span: timedelta) -> str:
    if span % timedelta(days=1):
        return str(span)
    return "1 day" if span.days == 1 else f"{span.days} days"
