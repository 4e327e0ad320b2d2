"""Finds out what is wrong with a car and repairs it, with tools over MCP and a supplier over A2A.

    python examples/car_repair_shop/shop.py
    parley send "A Toyota Camry 2018, XYZ123, rattles" --file engine.avi

The scanner is an MCP server over stdio, the repair manual and the lift are over HTTP. Calls are
remembered: after a crash the mechanic goes on where it was. A lift is more than a remembered call,
because people stand below it:

- Whether it is up, it says itself (`read_platform`). So a mechanic that was killed with a car on
  the lift raises it no second time.
- It comes down in a `finally`, also if the task is canceled or fails.
- Nothing is asked while a car is on the lift.
- Nobody runs that `finally` if the mechanic is killed and its task canceled before it is back. So
  the agent looks at the lift from time to time, and lowers it if its job is over (`watch_lift`).
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mcp import Client
from msgspec import Meta

import parley
from parley import Agent, Execution, McpServer, Part, RemoteTaskFailed, ToolResult, Turn
from parley.agent.tools.turn_tools import TurnTools

sys.path.insert(0, str(Path(__file__).parent))
from noise import listen

PACE = float(os.environ.get("PACE", "1"))
"""Seconds that a step of the work takes here, and an hour of waiting."""

MECHANIC = os.environ.get("MECHANIC", "http://127.0.0.1:9101")
SUPPLIER = os.environ.get("SUPPLIER", "http://127.0.0.1:9102")
LIFT = McpServer(os.environ.get("LIFT", "http://127.0.0.1:9103/lift"))
MANUAL = McpServer(os.environ.get("MANUAL", "http://127.0.0.1:9103/manual"))
SCANNER = McpServer.stdio(
    sys.executable,
    str(Path(__file__).with_name("scanner.py")),
    env={"FOLDER": os.environ.get("FOLDER", ".")},
)

HEIGHT = 2  # metres
LABOUR = 60.0  # EUR for an hour
LARGEST_VIDEO = 50_000_000  # bytes
LOOKS_EVERY = 2.0  # seconds
log = logging.getLogger("mechanic")


@dataclass
class Repaired:
    """What was found and done, and the price in EUR."""

    vehicle_id: str
    found: list[str]
    done: list[str]
    order: str
    price: float


@asynccontextmanager
async def lifespan(agent: Agent) -> AsyncIterator[None]:
    """Have somebody look at the lift as long as the agent is served."""
    watching = asyncio.create_task(watch_lift())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


agent = Agent(
    "Mechanic",
    description="Finds out what is wrong with cars, and repairs them",
    lifespan=lifespan,
    execution=Execution(cancel_grace=15),  # seconds: the lift has to come down
)


@agent.skill(replies="task", invalid_input="ask", tags=["cars"])
async def repair(
    turn: Turn,
    vehicle_id: Annotated[str, Meta(min_length=1, description="as on the registration: XYZ123")],
    make: str,
    model: str,
    year: int = 0,
) -> Repaired:
    """Examines and repairs a car; a video of its noise helps."""
    found = await heard(turn)
    async with turn.tools(SCANNER, MANUAL, LIFT) as tools:
        scan = await call(turn, tools, "scan_vehicle_for_error_codes", vehicle_id=vehicle_id)
        codes: list[str] = scan.data["result"]
        found += [f"error code {code}" for code in codes]
        if not codes:
            return Repaired(vehicle_id, [*found, "no error code"], [], "", 0.0)
        car = {"vehicle_make": make, "vehicle_model": model}
        await say(turn, f"The scanner says {codes[0]}. I look it up.")
        manual = await call(turn, tools, "get_repair_procedure", error_code=codes[0], **car)
        procedure: dict[str, Any] = manual.data

        async def look() -> str:
            await asyncio.sleep(PACE)
            return procedure["title"].lower()

        await say(turn, f"I look at the {model} from below.")
        found.append(await turn.step("look", on_the_lift, turn, tools, "look", look))

        ordered = await order(turn, procedure["part"], make, model, year)
        hours = ordered["hours"]
        await turn.sleep(hours * PACE, message=f"I wait {hours} h for the {ordered['name']}.")

        async def fit() -> str:
            for number, work in enumerate(procedure["steps"], 1):
                await say(turn, f"Step {number} of {len(procedure['steps'])}: {work}")
                await turn.step(f"work {number}", asyncio.sleep, PACE)
            return f"new {ordered['name']}, part #{ordered['part']}"

        done = await turn.step("fit", on_the_lift, turn, tools, "fit", fit)
        await call(turn, tools, "clear_error_codes", vehicle_id=vehicle_id)
        again = await call(turn, tools, "scan_vehicle_for_error_codes", vehicle_id=vehicle_id)
        if again.data["result"]:
            turn.fail(f"The car still says {', '.join(again.data['result'])}.")
    price = round(ordered["price"] + procedure["minutes"] / 60 * LABOUR, 2)
    return Repaired(vehicle_id, found, [done, "error codes cleared"], ordered["order"], price)


async def heard(turn: Turn) -> list[str]:
    """Say what the videos of the message let hear."""
    said = []
    for file in turn.files:
        noise = await asyncio.to_thread(listen, await file.read(limit=LARGEST_VIDEO))
        if noise is None:
            said.append(f"nothing to hear in {file.filename or 'the file'}")
        else:
            rhythm = "unevenly" if noise.is_uneven else "evenly"
            said.append(f"it knocks {rhythm}, {noise.knocks_per_second:g} times a second")
    return said


async def say(turn: Turn, text: str) -> None:
    """Say what is being done, once: the function runs again for every answer."""
    await turn.step(text, turn.working, text)


async def call(turn: Turn, tools: TurnTools, tool: str, **arguments: Any) -> ToolResult:
    """Call a tool once in the life of the task; if it refuses, the task fails with its reason."""
    result = await tools.call(tool, arguments)
    if result.is_error:
        reason = result.text.removeprefix(f"Error executing tool {tool}: ")
        turn.fail(f"The repair stops at {tool}: {reason}.")
    return result


async def order(turn: Turn, part: str, make: str, model: str, year: int) -> dict[str, Any]:
    """Order a part at the supplier. What it asks, the customer is asked."""
    wanted = {"part": part, "make": make, "model": model, "year": year}
    question = f"Do you have part #{part} in stock for a {make} {model} {year or ''}".strip()
    try:
        answer = await turn.delegate(SUPPLIER, [f"{question}?", Part(data=wanted)])
    except RemoteTaskFailed as error:
        turn.fail(f"The repair needs part #{part}. {error.task.text}")
    ordered: dict[str, Any] = answer.artifacts[-1].parts[0].data
    return ordered


# -- the lift ------------------------------------------------------------------------------------


async def on_the_lift(
    turn: Turn, tools: TurnTools, what: str, work: Callable[[], Awaitable[str]]
) -> str:
    """Do some work below the car, and bring the car down whatever happens."""
    attempt = f"{what}, attempt {turn.attempt}"  # after a crash the lift is asked again
    try:
        await raised(turn, tools, attempt)
        return await work()
    finally:
        down = await tools.call("lower_platform", {"job": turn.task_id}, key=f"{attempt}: down")
        if down.is_error:
            log.warning("the lift was not lowered: %s", down.text)


async def raised(turn: Turn, tools: TurnTools, attempt: str) -> None:
    """Return when the car is up; wait if another is."""
    number = 0
    while True:
        number += 1
        state = await tools.call("read_platform", key=f"{attempt}: read {number}")
        if state.is_error:
            turn.fail(f"The lift does not answer: {state.text}")
        if state.data["job"] == turn.task_id:
            return
        if not state.data["height_meters"]:
            height = {"height_meters": HEIGHT, "job": turn.task_id}
            up = await tools.call("raise_platform", height, key=f"{attempt}: up {number}")
            if not up.is_error:
                return
            log.warning("the lift does not go up: %s", up.text)
        await asyncio.sleep(PACE)


async def watch_lift() -> None:
    """Lower the lift when the task for which it is up has ended without it."""
    while True:
        try:
            async with Client(LIFT.url) as lift:
                while True:
                    await asyncio.sleep(LOOKS_EVERY)
                    await lower_if_forgotten(lift)
        except Exception as error:
            log.warning("nobody could look at the lift: %r", error)
        await asyncio.sleep(LOOKS_EVERY)


async def lower_if_forgotten(lift: Client) -> None:
    """Lower the lift if it is up for a task that has ended."""
    state = (await lift.call_tool("read_platform", {})).structured_content or {}
    if job := state.get("job"):
        try:
            async with parley.connect(MECHANIC) as own:
                task = await own.get(job)
        except (parley.ClientError, parley.A2AError):
            return  # this server begins or ends, or it is another mechanic's: leave it
        if task.state.is_terminal:
            log.warning("the lift is up although task %s has ended: it goes down", job)
            await lift.call_tool("lower_platform", {"job": job})
