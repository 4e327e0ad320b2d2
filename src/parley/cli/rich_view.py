"""The demo's view on a terminal: colour, and answers that grow in place. 80 columns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from parley import __version__
from parley.cli.demo_run import PlainView, bindings_text, capabilities_text, try_title
from parley.cli.output.answer import PlainAnswer
from parley.cli.output.rich_answer import RichAnswer, TextConsole, styled
from parley.model.cards import AgentCard

WIDTH = 80
PAUSE = 0.5  # seconds between two steps


class RichView(PlainView):
    """Colour and live progress, for terminals."""

    def __init__(self) -> None:
        self._console = TextConsole(WIDTH)
        self._steps = 0

    def _print(self, what: RenderableType) -> None:
        self._console.print(Padding(what, (0, 2)))

    def _line(self, label: str, text: Text | str, style: str = "dim") -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=8)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style), styled(text) if isinstance(text, str) else text)
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
        self._line("agent", styled((card.name, "bold"), f" {card.version}"))
        self._line("", card.description)
        for skill in card.skills:
            self._line("skill", styled((skill.id, "bold"), f"  {skill.description}"))
        self._line("can", capabilities_text(card))
        self._line("speaks", bindings_text(card))
        self._line("card", styled((url, "cyan")))

    def show_request(self, text: str) -> None:
        """Show a message to the agent."""
        self._print(styled(("› ", "cyan"), (text, "bold")))

    def answer(self) -> PlainAnswer:
        """Return what draws the events of an answer."""
        return RichAnswer(self._console)

    async def pause(self) -> None:
        """Pause before the next step."""
        await asyncio.sleep(PAUSE)

    def end(self, commands: Sequence[str], *, serving: bool, options: Sequence[str] = ()) -> None:
        """Show commands to try; ``options`` are the options of a demo to try them with."""
        self._console.print()
        title = Text(try_title(serving=serving, options=options), "bold")
        self._console.print(Rule(title, align="left", style="dim"))
        for command in commands:
            self._console.print(styled((f"  {command}", "cyan")), soft_wrap=True)
        if serving:
            self._console.print()
            self._print(Text("Serving until Ctrl-C.", "dim"))
