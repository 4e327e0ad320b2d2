"""Two MCP servers of the workshop, over HTTP: the platform lift, and the repair manual.

    python examples/car_repair_shop/workshop.py 9103

The lift is at /lift and the manual at /manual. shop.py starts it. What the lift does is written to
lift.txt in FOLDER. Where it stands is kept there too: a lift stays up when its computer restarts.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from starlette.applications import Starlette

FOLDER = Path(os.environ.get("FOLDER", "."))
PACE = float(os.environ.get("PACE", "1"))  # seconds for two metres
HIGHEST = 2.2  # metres

lift = MCPServer("Platform lift")
manual = MCPServer("Repair manual")
moving = asyncio.Lock()


class Platform(TypedDict):
    """How high the platform is, in metres, and for which job; 0 and "" when it is down."""

    height_meters: float
    job: str


class Procedure(TypedDict):
    """How an error is repaired: with which part, and in which steps."""

    title: str
    part: str
    minutes: int
    steps: list[str]


REPAIRS = {
    ("P0300", "toyota", "camry"): Procedure(
        title="Cylinders misfire at random",
        part="12345",
        minutes=50,
        steps=[
            "disconnect the battery",
            "take out the ignition coils",
            "put in the new ones",
            "connect the battery",
        ],
    )
}


@lift.tool(annotations=ToolAnnotations(read_only_hint=True))
def read_platform() -> Platform:
    """Read how high the platform is, and for which job."""
    kept = FOLDER / "lift.json"
    if not kept.exists():
        return Platform(height_meters=0, job="")
    platform: Platform = json.loads(kept.read_text("utf-8"))
    return platform


@lift.tool()
async def raise_platform(height_meters: float, job: str = "") -> Platform:
    """Raise the platform, for a job: only the same job lowers it."""
    if not 0 < height_meters <= HIGHEST:
        raise ToolError(f"the platform goes up to {HIGHEST} m, not {height_meters:g} m")
    return await asyncio.shield(go_up(height_meters, job))


async def go_up(height_meters: float, job: str) -> Platform:
    """Raise the platform if it is down."""
    async with moving:
        now = read_platform()
        if now["height_meters"]:
            raise ToolError(f"the platform is up at {now['height_meters']:g} m for {now['job']!r}")
        return await move(Platform(height_meters=height_meters, job=job), height_meters)


@lift.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def lower_platform(job: str = "") -> Platform:
    """Lower the platform to the ground."""
    return await asyncio.shield(go_down(job))


async def go_down(job: str) -> Platform:
    """Lower the platform, unless another job needs it."""
    async with moving:
        now = read_platform()
        if now["height_meters"] and now["job"] != job:
            raise ToolError(f"the platform is up for {now['job']!r}, not for {job!r}")
        if not now["height_meters"]:
            return now
        return await move(Platform(height_meters=0, job=""), now["height_meters"])


async def move(to: Platform, metres: float) -> Platform:
    """Move the platform. Where it goes is written before it moves."""
    with (FOLDER / "lift.txt").open("a", encoding="utf-8") as journal:
        journal.write(f"{'up' if to['height_meters'] else 'down'} {metres:g} m\n")
    new = FOLDER / "lift.new"
    new.write_text(json.dumps(to), "utf-8")
    new.replace(FOLDER / "lift.json")
    await asyncio.sleep(metres * PACE / 2)
    return to


@manual.tool(annotations=ToolAnnotations(read_only_hint=True))
def get_repair_procedure(error_code: str, vehicle_make: str, vehicle_model: str) -> Procedure:
    """Look up how an error of a car is repaired."""
    found = REPAIRS.get((error_code.upper(), vehicle_make.lower(), vehicle_model.lower()))
    if found is None:
        raise ToolError(f"the manual has nothing on {error_code} of {vehicle_make} {vehicle_model}")
    return found


def main(port: int) -> None:
    """Serve both at one port of this machine."""
    apps = [
        lift.streamable_http_app(streamable_http_path="/lift"),
        manual.streamable_http_app(streamable_http_path="/manual"),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with apps[0].router.lifespan_context(app), apps[1].router.lifespan_context(app):
            yield

    app = Starlette(routes=[*apps[0].routes, *apps[1].routes], lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
