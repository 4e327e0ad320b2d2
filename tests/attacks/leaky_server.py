"""A server that logs at the most detailed level, and limits no caller's rate."""

from __future__ import annotations

import logging
import os

import parley
from parley.cli.output.streams import log_to_stderr
from parley.security import failures
from parley.server.run import run
from parley.server.settings import Settings, grpc_options
from tests.attacks.leaky_agents import AGENTS

failures.LINES_PER_MINUTE = 1_000_000
log_to_stderr("debug")
for name in ("parley", "uvicorn", "aiohttp", "asyncio", "grpc"):
    logging.getLogger(name).setLevel(logging.DEBUG)
run(
    parley.asgi(
        {f"/{name}": agent for name, agent in AGENTS.items()},
        store=os.environ["PARLEY_STORE"],
        settings=Settings(auth_failures_per_minute=0),
        drain=0.0,
    ),
    port=0,
    grpc=grpc_options(0),
    access_log=True,
    on_listening=lambda url: print(url, flush=True),
)
