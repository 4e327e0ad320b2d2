"""The interoperability matrix: its cells, and how to run one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import parley
from parley.server.run import serving
from parley.server.settings import Settings, grpc_options

from .environments import command
from .exchanges import CARD, EXCHANGES, Perform, Refused, Unexpected, play
from .exchanging import by_exchanges, by_operations, by_our_client, by_our_command_line
from .interop_agent import agent
from .official_caller import WAIT, official_process
from .table import TABLE, Side

CLIENT, SERVER = "client", "server"
OURS = {"library": by_our_client, "command line": by_our_command_line}
PATIENCE = 60.0
"""Timeout of an exchange, in seconds."""

START = 180.0
"""Timeout for the start of a peer's server, in seconds: some frameworks are big."""


class Cell(NamedTuple):
    """One side of a peer over one binding and version."""

    peer: str
    side: str
    binding: str
    version: str

    def __str__(self) -> str:
        return " ".join(self)


class Outcome(NamedTuple):
    """The result of an exchange. ``failed`` is empty on success."""

    offered: bool = True
    failed: str = ""


def side_of(peer: str, side: str) -> Side | None:
    """Return one side of a peer, if the peer has it."""
    found = TABLE[peer]
    return found.client if side == CLIENT else found.server


def cells(peers: list[str] | None = None) -> Iterator[Cell]:
    """Yield all cells, or the cells of some peers."""
    for peer in TABLE:
        for side in (CLIENT, SERVER):
            found = side_of(peer, side)
            if found is not None and (not peers or peer in peers):
                yield from (Cell(peer, side, *spoken) for spoken in found.speaks)


@asynccontextmanager
async def our_server(settings: Mapping[str, Any]) -> AsyncIterator[str]:
    """Serve the agent of the matrix on our server, also over gRPC; yield its address."""
    app = parley.asgi(agent, drain=0.5, settings=Settings(**settings))
    async with serving(app, grpc=grpc_options(0)) as url:
        yield url


@asynccontextmanager
async def their_server(peer: str) -> AsyncIterator[str]:
    """Run a peer's server with its agent; yield its address. Raises ``NotMade``."""
    side = TABLE[peer].server
    assert side is not None
    words = await asyncio.to_thread(command, TABLE[peer].peer, f"servers/{side.script}")
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START):
            url = (await process.stdout.readline()).decode().strip()
        assert url, f"{words} did not start"
        yield url
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), WAIT)
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def performing(cell: Cell) -> AsyncIterator[dict[str, Perform]]:
    """Yield the functions that perform the exchanges of a cell, by name. Raises ``NotMade``."""
    side = side_of(cell.peer, cell.side)
    assert side is not None
    if cell.side == SERVER:
        async with their_server(cell.peer) as url:
            yield {name: ours(url, cell.binding, cell.version) for name, ours in OURS.items()}
        return
    words = await asyncio.to_thread(command, TABLE[cell.peer].peer, f"clients/{side.script}")
    async with our_server(side.settings) as url, official_process(words, PATIENCE) as process:
        where = (url, cell.binding, cell.version)
        if side.operations:
            yield {CLIENT: by_operations(cell.peer, process, where, side.operations)}
        else:
            yield {CLIENT: by_exchanges(process, *where)}


async def outcomes(cell: Cell, exchanges: tuple[str, ...] = tuple(EXCHANGES)) -> dict[str, Outcome]:
    """Run exchanges of a cell. Raises ``NotMade``."""
    side = side_of(cell.peer, cell.side)
    assert side is not None
    name = agent.name if cell.side == CLIENT else side.name
    found = {}
    async with performing(cell) as performers:
        for exchange in exchanges:
            if exchange in side.lacks:
                found[exchange] = Outcome(offered=False)
                continue
            failures = []
            for who, perform in performers.items():
                if said := await _failure(exchange, perform, name, bool(side.whole)):
                    failures.append(said if who == CLIENT else f"{who}: {said}")
            found[exchange] = Outcome(failed="; ".join(failures))
    return found


async def _failure(exchange: str, perform: Perform, name: str, whole: bool) -> str:
    try:
        async with asyncio.timeout(PATIENCE):
            await play(exchange, perform, name, whole=whole)
    except (Unexpected, Refused) as error:
        return str(error)
    except TimeoutError:
        return "it did not come to an end"
    except Exception as error:  # a fault of Parley, or of the test
        return f"{type(error).__name__}: {error}"
    return ""


def least(cell: Cell) -> str:
    """Return the one exchange that represents a side when there is no time for all."""
    side = side_of(cell.peer, cell.side)
    assert side is not None
    return next(e for e in ("message", "stream", CARD) if e not in side.lacks)
