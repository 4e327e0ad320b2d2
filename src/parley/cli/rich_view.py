"""The demo's view on a terminal: colour, and an artifact that grows in place. 80 columns."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from parley import __version__
from parley.cli.demo_run import (
    PlainArtifact,
    PlainView,
    bindings_text,
    capabilities_text,
    shown_part,
    state_name,
    try_title,
)
from parley.cli.output.text import visible
from parley.model.cards import AgentCard
from parley.model.tasks import Task, TaskState

MAX_PIXELS = 1_000_000  # larger pictures are not drawn


def half_blocks(png: bytes, columns: int, rows: int) -> Text | None:
    """Return a PNG at ``columns`` x ``rows`` characters; ``None`` for an unsupported form.

    Supported: eight bits, a palette, no interlacing, unfiltered lines.
    """
    decoded = _decode(png)
    if decoded is None:
        return None
    width, height, lines, palette = decoded
    picture = Text()
    for row in range(rows):
        for column in range(columns):
            across = _span(column, columns, width)
            upper, lower = (
                _mean(lines, palette, across, _span(2 * row + half, 2 * rows, height))
                for half in (0, 1)
            )
            picture.append("▀", f"{upper} on {lower}")
        picture.append("\n")
    picture.rstrip()
    return picture


def _span(index: int, count: int, size: int) -> range:
    return range(index * size // count, (index + 1) * size // count)


def _mean(
    lines: list[bytes], palette: list[tuple[int, int, int]], across: range, down: range
) -> str:
    colours = [palette[lines[y][x]] for y in down for x in across]
    red, green, blue = (sum(values) // len(colours) for values in zip(*colours, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _decode(png: bytes) -> tuple[int, int, list[bytes], list[tuple[int, int, int]]] | None:
    if not png.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    chunks: dict[bytes, bytes] = {}
    offset = 8
    while offset + 12 <= len(png):
        size, kind = struct.unpack(">I4s", png[offset : offset + 8])
        chunks[kind] = chunks.get(kind, b"") + png[offset + 8 : offset + 8 + size]
        offset += size + 12
    try:
        width, height, *form = struct.unpack(">2I5B", chunks[b"IHDR"])
        if form != [8, 3, 0, 0, 0] or min(width, height) < 64 or width * height > MAX_PIXELS:
            return None
        pixels = zlib.decompressobj().decompress(chunks[b"IDAT"], (width + 1) * height)
        colours = chunks[b"PLTE"]
    except (KeyError, struct.error, zlib.error):
        return None
    lines = [pixels[y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    if any(line[:1] != b"\0" or len(line) != width + 1 for line in lines):
        return None
    palette = [(colours[i], colours[i + 1], colours[i + 2]) for i in range(0, len(colours) - 2, 3)]
    if max(max(line[1:]) for line in lines) >= len(palette):
        return None
    return width, height, [line[1:] for line in lines], palette


WIDTH = 80
PAUSE = 0.5  # seconds between two steps
PICTURE = (32, 12)

_STYLES = {
    TaskState.COMPLETED: "green",
    TaskState.INPUT_REQUIRED: "yellow",
    TaskState.AUTH_REQUIRED: "yellow",
    TaskState.FAILED: "red",
    TaskState.REJECTED: "red",
    TaskState.CANCELED: "red",
}


class _Console(Console):
    """A console that prints text only: no cursor movements, markup or emoji codes in it.

    Untrusted text also goes through ``visible`` before the layout, so that its width is right.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments: rich's own controls, and text without controls."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class RichView(PlainView):
    """Colour and live progress, for terminals."""

    def __init__(self) -> None:
        self._console = _Console()
        self._console.width = min(self._console.width, WIDTH)
        self._steps = 0

    def _print(self, what: RenderableType) -> None:
        self._console.print(Padding(what, (0, 2)))

    def _line(self, label: str, text: Text | str, style: str = "dim") -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=8)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style), _text(text) if isinstance(text, str) else text)
        self._print(grid)

    def begin(self, address: str, paths: Sequence[str]) -> None:
        """Show the server's address and agents."""
        head = Text.assemble(
            ("Parley ", "bold cyan"), (__version__, "cyan"), "  ", (address, "bold")
        )
        body = Text("  ".join(paths), "dim")
        self._console.print()
        self._console.print(Panel(Group(head, body), box=ROUNDED, border_style="cyan"))

    def step(self, title: str, about: str) -> None:
        """Show the title of the next step."""
        self._steps += 1
        self._console.print()
        name = Text.assemble((f"{self._steps} ", "cyan"), (title, "bold"))
        self._console.print(Rule(name, align="left", style="dim"))
        self._print(Text(about, "italic dim"))
        self._console.print()

    def show_card(self, card: AgentCard, url: str) -> None:
        """Show an agent card."""
        self._line("agent", _text((card.name, "bold"), f" {card.version}"))
        self._line("", card.description)
        for skill in card.skills:
            self._line("skill", _text((skill.id, "bold"), f"  {skill.description}"))
        self._line("can", capabilities_text(card))
        self._line("speaks", bindings_text(card))
        self._line("card", _text((url, "cyan")))

    def show_request(self, text: str) -> None:
        """Show a message to the agent."""
        self._line("you", _text((text, "bold")), "cyan")

    def show_reply(self, text: str) -> None:
        """Show a direct reply of the agent."""
        self._line("agent", text, "magenta")

    @contextmanager
    def growing_artifact(self) -> Iterator[PlainArtifact]:
        """Show an artifact in a frame while it grows."""
        artifact = _RichArtifact(self._console.height - 8)
        with Live(artifact, console=self._console, refresh_per_second=20) as live:
            yield artifact
            artifact.is_complete = True
            live.update(artifact)

    def show_task(self, task: Task) -> None:
        """Show a task."""
        style = _STYLES.get(task.state, "blue")
        message = task.status.message.text if task.status.message else ""
        state = _text((f"● {state_name(task.state)}", style), "  ", message)
        self._line("task", state, "magenta")
        for artifact in task.artifacts:
            for part in artifact.parts:
                self._line("artifact", shown_part(part, artifact.name), "magenta")
                if part.raw and (picture := half_blocks(part.raw, *PICTURE)):
                    self._print(Padding(picture, (0, 9)))

    async def pause(self) -> None:
        """Pause before the next step."""
        await asyncio.sleep(PAUSE)

    def end(self, commands: Sequence[str], *, serving: bool, options: Sequence[str] = ()) -> None:
        """Show commands to try; ``options`` are the options of a demo to try them with."""
        self._console.print()
        title = Text(try_title(serving=serving, options=options), "bold")
        self._console.print(Rule(title, align="left", style="dim"))
        for command in commands:
            self._console.print(_text((f"  {command}", "cyan")), soft_wrap=True)
        if serving:
            self._console.print()
            self._print(Text("Serving until Ctrl-C.", "dim"))


class _RichArtifact(PlainArtifact):
    """The frame of a growing artifact."""

    def __init__(self, height: int) -> None:
        self.is_complete = False
        self._height = max(height, 4)
        self._name = ""
        self._text = ""
        self._chunks = 0
        self._state = TaskState.SUBMITTED
        self._message = ""
        self._spinner = Spinner("dots", style="cyan")

    def add(self, name: str, text: str) -> None:
        """Add text to the artifact."""
        self._name = name or self._name
        self._text += text
        self._chunks += 1

    def status(self, state: TaskState, message: str) -> None:
        """Show the task's state and status message."""
        self._state, self._message = state, message

    def __rich__(self) -> RenderableType:
        """Return the current frame."""
        foot = Table.grid(padding=(0, 1))
        count = Text(f"{self._chunks} pieces, each durable before it was shown", "dim")
        if self.is_complete:
            foot.add_row(Text("●", _STYLES.get(self._state, "blue")), count)
        else:
            foot.add_row(self._spinner, _text(self._message or state_name(self._state)))
        lines = self._text.rstrip("\n").split("\n")
        # A frame taller than the terminal cannot be redrawn in place.
        shown = lines if self.is_complete else lines[-self._height :]
        body = Text("\n").join(_line_of_report(line) for line in shown)
        return Padding(
            Panel(
                Group(body, "", foot),
                title=_text((self._name or "artifact", "dim")),
                title_align="left",
                box=ROUNDED,
                border_style="magenta" if self.is_complete else "cyan",
            ),
            (0, 2),
        )


def _line_of_report(line: str) -> Text:
    heading = line.lstrip("#")
    if heading != line:
        return _text((heading.strip(), "bold"))
    return _text(line)


def _text(*pieces: str | tuple[str, str]) -> Text:
    """Return the escaped text of pieces, each with or without a style."""
    pairs = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    return Text.assemble(*((visible(text), style) for text, style in pairs))
