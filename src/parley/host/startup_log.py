"""Log at startup what could surprise an operator later. ``Host.start`` calls it."""

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
from parley.security.loopback import is_plain_public
from parley.store.memory import MemoryTaskStore
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.host")

_WORKERS = re.compile(r"(?:--workers(?:=|$)|-w=?)(\d*)")


def log_startup(
    store: TaskStore,
    agents: Sequence[AgentDescription],
    url: str | None = None,
    *,
    signs: bool = False,
) -> None:
    """Log when ended tasks are pruned, and warn of what is likely a mistake.

    That is several processes with ``memory:``, a public ``url`` that callers would send credentials
    to without encryption, and signing keys (``signs``) without an address that may be signed, or
    with one whose keys no client fetches.
    """
    secured = [agent.name for agent in agents if requires_credentials(agent)]
    if url is not None and is_plain_public(url) and secured:
        log.warning(
            "the card of %s requires credentials and names %s, where callers would send them "
            "unencrypted: give an https:// address (url)",
            ", ".join(secured),
            url,
        )
    if signs and url is None:
        log.warning(
            "cards are served without signatures: signing keys are there, and only an address that "
            "the operator names is ever signed, never one of a request; give the public one (url)"
        )
    elif signs and url is not None and is_plain_public(url):
        log.warning(
            "the signatures of cards name keys at %s, and clients fetch keys over https only: they "
            "trust these cards if they pin the keys; give an https:// address (url)",
            url,
        )
    removed = removed_after(agents)
    if removed:
        log.info("tasks are removed with all that is theirs when they have ended %s", removed)
    if (
        isinstance(store, MemoryTaskStore)
        and not store.is_shared
        and (workers := several_workers())
    ):
        log.warning(
            "this is one of several worker processes (%s), and memory: keeps tasks in each for "
            "itself: what one began, the others do not know; use one worker, or a store that "
            "processes share, postgresql://host/database",
            workers,
        )


def requires_credentials(agent: AgentDescription) -> bool:
    """Return whether an agent asks for credentials, for some of what it does at least."""
    return agent.authorization is not None and bool(agent.authorization.securities)


def removed_after(agents: Sequence[AgentDescription]) -> str:
    """Return a text on when the agents' tasks are pruned, empty if they never are."""
    names: dict[timedelta, list[str]] = {}
    for agent in agents:
        if agent.retention is not None:
            names.setdefault(agent.retention, []).append(agent.name)
    spans = sorted(names)
    if not spans:
        return ""
    if len(names[spans[0]]) == len(agents):
        times = _span(spans[0])
    else:
        times = ", ".join(f"{_span(span)} ({', '.join(names[span])})" for span in spans)
    return f"for {times}; Agent(retention=...) says how long they are kept, None for ever"


def several_workers(environ: Mapping[str, str] = os.environ) -> str:
    """Return the evidence that this is one of several processes that serve the same app.

    Empty if it is the only one, or if that is unknown: a reloader is a second process too.
    """
    child = multiprocessing.parent_process() and multiprocessing.current_process()
    # uvicorn passes its configuration to the process; there is no other way to read it.
    config: Any = (getattr(child, "_kwargs", None) or {}).get("config")
    if type(config).__module__ == "uvicorn.config":
        is_alone = config.should_reload or config.workers < 2
        return "" if is_alone else f"uvicorn has {config.workers}"
    if environ.get("SERVER_SOFTWARE", "").startswith("gunicorn"):
        arguments = [*shlex.split(environ.get("GUNICORN_CMD_ARGS", "")), *sys.argv[1:]]
        count = _worker_count(arguments) or _number(environ.get("WEB_CONCURRENCY", ""))
        return f"gunicorn has {count}" if count > 1 else ""
    if child and (count := _worker_count(sys.argv[1:])) > 1 and "--reload" not in sys.argv:
        return f"--workers {count}"
    return ""


def _worker_count(arguments: Sequence[str]) -> int:
    """Return the number of workers in a command line, 0 without one."""
    count = 0
    for argument, value in itertools.pairwise([*arguments, ""]):
        match = _WORKERS.fullmatch(argument)
        if match:
            count = _number(match[1] or value)
    return count


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _span(span: timedelta) -> str:
    if span % timedelta(days=1):
        return str(span)
    return "1 day" if span.days == 1 else f"{span.days} days"
