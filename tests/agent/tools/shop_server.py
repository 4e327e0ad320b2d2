"""An MCP server of a workshop, over stdio, or with ``--http PORT`` over HTTP: it prints the port.

``JOURNAL`` names the file to which the server appends a line for each action.
"""

import asyncio
import base64
import os
import socket
import sys
from typing import Annotated

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import CallToolResult, ImageContent, ResourceLink, TextContent, ToolAnnotations
from pydantic import BaseModel

server = MCPServer("workshop")


def done(what: str) -> None:
    with open(os.environ["JOURNAL"], "a", encoding="utf-8") as journal:
        journal.write(f"{what}\n")


class Height(BaseModel):
    height_meters: float


class Owner(BaseModel):
    name: str


@server.tool()
def raise_platform(height_meters: float) -> Height:
    """Raise the platform."""
    done(f"raised {height_meters:g}")
    return Height(height_meters=height_meters)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read_code() -> str:
    """Read the error code of the car."""
    done("read")
    return "P0300"


@server.tool()
async def order(part: str, ctx: Context) -> str:
    """Order a part; takes until a file says so."""
    done(f"ordered {part}")
    await ctx.report_progress(1, 2, f"looking for {part}")
    try:
        while not os.path.exists(os.environ["JOURNAL"] + ".go"):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        done(f"gave up {part}")
        raise
    return f"ordered {part}"


def ask_owner() -> Elicit[Owner]:
    return Elicit("Whose car is it?", Owner)


@server.tool()
def hand_over(owner: Annotated[Owner, Resolve(ask_owner)]) -> str:
    """Hand the car over to its owner."""
    done(f"handed over to {owner.name}")
    return f"handed over to {owner.name}"


@server.tool()
async def sign(ctx: Context) -> str:
    """Have the owner sign: asks in the middle of the call."""
    done("sign")
    answer = await ctx.elicit("Who signs?", Owner)
    if answer.action != "accept":
        return answer.action
    done(f"signed by {answer.data.name}")
    return f"signed by {answer.data.name}"


@server.tool()
async def pay(ctx: Context) -> str:
    """Pay, after a question that is asked once; takes until a file says so."""
    asked = os.environ["JOURNAL"] + ".asked"
    if not os.path.exists(asked):
        open(asked, "w", encoding="utf-8").close()
        await ctx.elicit("Who pays?", Owner)
    done("paid")
    while not os.path.exists(os.environ["JOURNAL"] + ".go"):
        await asyncio.sleep(0.02)
    return "paid"


@server.tool()
def process() -> str:
    """Return the number of this process."""
    return str(os.getpid())


@server.tool()
async def polish(times: int, ctx: Context) -> str:
    """Polish the car, and say so each time."""
    for number in range(times):
        await ctx.report_progress(number, times, f"polished {number}")
    return "polished"


@server.tool()
def photo() -> CallToolResult:
    """Take a photo of the car."""
    pixel = base64.b64encode(b"\x89PNG").decode()
    return CallToolResult(
        content=[
            TextContent(text="the car"),
            ImageContent(data=pixel, mime_type="image/png"),
            ResourceLink(uri="https://example.com/manual.pdf", name="manual.pdf"),
        ]
    )


@server.tool()
def noise(size: int) -> str:
    """Return a text of a size."""
    return "x" * size


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("the lift is stuck")


@server.tool()
def stop() -> str:
    """End the process in the middle of a call."""
    done("stop")
    os._exit(3)


if __name__ == "__main__":
    if "--http" in sys.argv:
        listening = socket.socket(proto=socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(sys.argv[2])))
        listening.listen()  # a client may connect as soon as it has read the port
        print(listening.getsockname()[1], flush=True)
        app = server.streamable_http_app()
        uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listening])
    else:
        server.run("stdio")
