"""Draws a sailboat, and draws it again in another colour when it is asked to.

    parley serve examples/sailboat.py --missing-version 1.0
    parley send "Draw a sailboat"
    parley send --context-id ... "Make it red"
    python examples/sailboat.py http://localhost:9999

A finished task never changes. "Make it red" is a new task in the same context; it refers to the
task that drew the boat, by the message's referenceTaskIds or because that was the only drawing,
and its artifact has the same name and an id of its own. When several could be meant, it asks.
The last command is a client that keeps the versions of the drawing, and says which one it means.
"""

import asyncio
import struct
import sys
import zlib

import parley
from parley import Agent, ArtifactVersions, Part, Turn

agent = Agent(
    name="Sailboat agent",
    description="Draws sailboats and repaints them",
    version="1.0.0",
    output_modes=("image/png", "text/plain"),
)

NAME = "sailboat.png"
COLOURS = {
    "white": (250, 250, 250), "red": (205, 45, 45), "blue": (40, 80, 180), "green": (40, 140, 80),
    "yellow": (245, 205, 60), "orange": (240, 140, 40), "purple": (130, 60, 160),
    "black": (30, 30, 30),
}  # fmt: skip


@agent.skill(
    tags=["drawing"], examples=["Draw a sailboat", "Draw a green sailboat"], replies="task"
)
async def sailboat(turn: Turn) -> None:
    """Draws a sailboat as a PNG, or an earlier one again in another colour."""
    before = ""
    if turn.message.reference_task_ids or "draw" not in turn.text.lower():
        before = await which(turn)
    colour = colour_in(turn.text) or before or "white"
    await turn.working(
        f"Painting the {before} sailboat {colour}" if before else f"Drawing a {colour} sailboat"
    )
    drawn = Part(raw=paint(colour), media_type="image/png", filename=NAME)
    await turn.artifact(drawn, name=NAME, metadata={"colour": colour})


async def which(turn: Turn) -> str:
    """Return the colour of the earlier boat that is meant; ask when it could be several."""
    drawn = [boat for boat in await turn.referenced_artifacts() if boat.name == NAME]
    if not drawn:
        tasks = await turn.references() or await turn.other_tasks()
        drawn = [boat for task in tasks for boat in task.artifacts if boat.name == NAME]
    colours = list(dict.fromkeys(boat.metadata["colour"] for boat in drawn if boat.metadata))
    while len(colours) > 1:
        answer = await turn.ask(f"Which sailboat do you mean: {' or '.join(colours)}?")
        colours = [colour for colour in colours if colour == colour_in(answer.text)] or colours
    return colours[0] if colours else ""


def colour_in(text: str) -> str:
    """Return the first colour that ``text`` names, or nothing."""
    words = text.lower().replace(".", " ").replace(",", " ").split()
    return next((word for word in words if word in COLOURS), "")


def paint(sail: str) -> bytes:
    """Return a PNG of a boat with sails in one of the colours."""
    width, height, horizon = 320, 240, 180
    sky, sea, wood, cloth = range(4)
    rows = [bytearray([sky if y < horizon else sea]) * width for y in range(height)]
    for y in range(30, 160):  # the sails, on either side of the mast, widest at the bottom
        jib, mainsail = (y - 30) * 5 // 10, (y - 30) * 7 // 10
        rows[y][152 - jib : 152] = bytes([cloth]) * jib
        rows[y][164 : 164 + mainsail] = bytes([cloth]) * mainsail
    for y in range(20, 170):
        rows[y][156:160] = bytes([wood]) * 4
    for y in range(168, 200):  # the hull, narrower below
        inset = y - 168
        rows[y][70 + inset : 260 - inset] = bytes([wood]) * (190 - 2 * inset)
    palette = bytes((150, 205, 240, 30, 100, 160, 110, 70, 40, *COLOURS[sail]))
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    header = struct.pack(">2I5B", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


async def repaint(address: str) -> None:
    """Have a boat drawn and repainted; the second colour does not please."""
    async with parley.connect(address) as boats:
        versions = ArtifactVersions()
        versions.add(await boats.send("Draw a sailboat"))
        versions.add(await boats.send(versions.message("Make it black", NAME)))
        versions.reject(versions.latest(NAME))
        versions.add(await boats.send(versions.message("Make it red", NAME)))
        for version in versions.versions(NAME):
            before = f"from {version.predecessor.number}" if version.predecessor else "new"
            colour = (version.artifact.metadata or {})["colour"]
            print(version.number, colour, before, version.verdict)


if __name__ == "__main__":
    try:
        asyncio.run(repaint(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:9999"))
    except (parley.A2AError, parley.ClientError) as error:
        sys.exit(str(error))
