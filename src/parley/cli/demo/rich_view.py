"""The demo on a terminal: colour, and an artifact that grows in place. Fits 80 columns."""

from __future__ import annotations

import asyncio
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
from parley.cli.demo.picture import half_blocks
from parley.cli.demo.view import Paper, can, shown_part, speaks, state_name, try_title
from parley.cli.output.text import visible
from parley.model.cards import AgentCard
from parley.model.tasks import Task, TaskState

WIDTH = 80
MOMENT = 0.5  # between scenes, so that they can be followed
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
    """A console where text is text: it moves no cursor, and no markup or emoji code is read in it.

    What may hold others' words goes through ``visible`` before it is laid out too, so that it is
    as wide as it is shown.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return what is written: our own controls, and text that has none."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class RichStage:
    """Colour and live progress, for terminals."""

    def __init__(self) -> None:
        self._console = _Console()
        self._console.width = min(self._console.width, WIDTH)
        self._scenes = 0

    def _print(self, what: RenderableType) -> None:
        self._console.print(Padding(what, (0, 2)))

    def _line(self, label: str, text: Text | str, style: str = "dim") -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=8)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style), _words(text) if isinstance(text, str) else text)
        self._print(grid)

    def begin(self, address: str, paths: Sequence[str]) -> None:
        """Say what is served where."""
        head = Text.assemble(
            ("Parley ", "bold cyan"), (__version__, "cyan"), "  ", (address, "bold")
        )
        body = Text("  ".join(paths), "dim")
        self._console.print()
        self._console.print(Panel(Group(head, body), box=ROUNDED, border_style="cyan"))

    def scene(self, title: str, about: str) -> None:
        """Begin a scene."""
        self._scenes += 1
        self._console.print()
        name = Text.assemble((f"{self._scenes} ", "cyan"), (title, "bold"))
        self._console.print(Rule(name, align="left", style="dim"))
        self._print(Text(about, "italic dim"))
        self._console.print()

    def card(self, card: AgentCard, url: str) -> None:
        """Show an agent card."""
        self._line("agent", _words((card.name, "bold"), f" {card.version}"))
        self._line("", card.description)
        for skill in card.skills:
            self._line("skill", _words((skill.id, "bold"), f"  {skill.description}"))
        self._line("can", can(card))
        self._line("speaks", speaks(card))
        self._line("card", _words((url, "cyan")))

    def asked(self, text: str) -> None:
        """Show what is sent to the agent."""
        self._line("you", _words((text, "bold")), "cyan")

    def replied(self, text: str) -> None:
        """Show what the agent replies directly."""
        self._line("agent", text, "magenta")

    @contextmanager
    def growing(self) -> Iterator[Paper]:
        """Show an artifact in a frame while it grows."""
        paper = _RichPaper(self._console.height - 8)
        with Live(paper, console=self._console, refresh_per_second=20) as live:
            yield paper
            paper.over = True
            live.update(paper)

    def task(self, task: Task) -> None:
        """Show a task as it stands."""
        style = _STYLES.get(task.state, "blue")
        said = task.status.message.text if task.status.message else ""
        state = _words((f"● {state_name(task.state)}", style), "  ", said)
        self._line("task", state, "magenta")
        for artifact in task.artifacts:
            for part in artifact.parts:
                self._line("artifact", shown_part(part, artifact.name), "magenta")
                if part.raw and (picture := half_blocks(part.raw, *PICTURE)):
                    self._print(Padding(picture, (0, 9)))

    async def pause(self) -> None:
        """Give whoever watches a moment."""
        await asyncio.sleep(MOMENT)

    def end(self, commands: Sequence[str], *, serving: bool, options: Sequence[str] = ()) -> None:
        """Say what to try next; ``options`` are those of a demo that it can be tried with."""
        self._console.print()
        title = Text(try_title(serving=serving, options=options), "bold")
        self._console.print(Rule(title, align="left", style="dim"))
        for command in commands:
            self._console.print(_words((f"  {command}", "cyan")), soft_wrap=True)
        if serving:
            self._console.print()
            self._print(Text("Serving until Ctrl-C.", "dim"))


class _RichPaper:
    """The frame that a growing artifact is shown in."""

    def __init__(self, height: int) -> None:
        self.over = False
        self._height = max(height, 4)
        self._name = ""
        self._text = ""
        self._chunks = 0
        self._state = TaskState.SUBMITTED
        self._said = ""
        self._spinner = Spinner("dots", style="cyan")

    def add(self, name: str, text: str) -> None:
        """Add text to the artifact."""
        self._name = name or self._name
        self._text += text
        self._chunks += 1

    def status(self, state: TaskState, said: str) -> None:
        """Show the state of the task, and what the agent says about it."""
        self._state, self._said = state, said

    def __rich__(self) -> RenderableType:
        """Return the frame as it looks now."""
        foot = Table.grid(padding=(0, 1))
        count = Text(f"{self._chunks} pieces, each durable before it was shown", "dim")
        if self.over:
            foot.add_row(Text("●", _STYLES.get(self._state, "blue")), count)
        else:
            foot.add_row(self._spinner, _words(self._said or state_name(self._state)))
        lines = self._text.rstrip("\n").split("\n")
        # What is taller than the terminal cannot be drawn again in place.
        shown = lines if self.over else lines[-self._height :]
        body = Text("\n").join(_line_of_report(line) for line in shown)
        return Padding(
            Panel(
                Group(body, "", foot),
                title=_words((self._name or "artifact", "dim")),
                title_align="left",
                box=ROUNDED,
                border_style="magenta" if self.over else "cyan",
            ),
            (0, 2),
        )


def _line_of_report(line: str) -> Text:
    heading = line.lstrip("#")
    if heading != line:
        return _words((heading.strip(), "bold"))
    return _words(line)


def _words(*pieces: str | tuple[str, str]) -> Text:
    """Return text as it is shown, each piece alone or with its style."""
    pairs = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    return Text.assemble(*((visible(text), style) for text, style in pairs))
