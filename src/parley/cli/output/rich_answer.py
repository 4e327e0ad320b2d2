"""An answer drawn on a terminal: Markdown that grows, one artifact after the other, pictures.

Finished blocks of the front artifact are printed for good. Only the rest is drawn again: its last
block, the last lines of other artifacts, and a line with the state of the task.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import ClassVar, Self

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from parley.cli.output.answer import Growing, PlainAnswer, finished, state_name
from parley.cli.output.pictures import half_blocks
from parley.cli.output.text import json_text, visible
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState

PICTURE = 40  # columns
MAX_LIVE = 8_000  # characters that are drawn again and again
OTHER_LINES = 3  # of each artifact behind the front one

STYLES = {
    TaskState.COMPLETED: "green",
    TaskState.INPUT_REQUIRED: "yellow",
    TaskState.AUTH_REQUIRED: "yellow",
    TaskState.FAILED: "red",
    TaskState.REJECTED: "red",
    TaskState.CANCELED: "red",
}


class TextConsole(Console):
    """A console that prints text only: no cursor movements, markup or emoji codes in it.

    Untrusted text also goes through ``visible`` before the layout, so that its width is right.
    """

    def __init__(self, width: int) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        self.width = min(self.width, width)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments: rich's own controls, and text without controls."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def styled(*pieces: str | tuple[str, str]) -> Text:
    """Return the escaped text of pieces, each with or without a style."""
    pairs = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    return Text.assemble(*((visible(text), style) for text, style in pairs))


class _Heading(Heading):
    """A heading at the left, as bold text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield self.text


class AgentMarkdown(Markdown):
    """The Markdown of an agent: line ends stay, links show their address, HTML is text."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self.parsed = parser.parse(visible(text))
        for token in self.parsed:
            for child in token.children or ():
                _make_plain(child)


def _make_plain(token: Token) -> None:
    if token.type == "softbreak":
        token.type = "hardbreak"
    elif token.type == "image":
        token.type, token.content = "text", f"{token.content} ({token.attrs.get('src')})"


class _Trimmed:
    """The last lines of something, without empty lines around it."""

    def __init__(self, inner: RenderableType, height: int = 0) -> None:
        self._inner, self._height = inner, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inner, options, pad=False)
        full = [at for at, line in enumerate(lines) if any(each.text.strip() for each in line)]
        for line in lines[full[0] : full[-1] + 1][-self._height :] if full else ():
            yield from (*line, Segment.line())


class RichAnswer(PlainAnswer):
    """Draws the events of one answer; see ``PlainAnswer``."""

    def __init__(
        self,
        console: Console,
        before: Task | None = None,
        files: list[Part] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(before, files)
        self._console = console
        self._hint = hint
        self._began = time.monotonic()
        self._doing = ""
        self._titled: Growing | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            self, console=console, refresh_per_second=12, transient=True, redirect_stdout=False,
            redirect_stderr=False, vertical_overflow="crop",
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._live.stop()
        if self._state.is_terminal or self._state.is_interrupted:
            seconds = time.monotonic() - self._began
            took = f" · {seconds:.0f} s" if seconds >= 1 else ""
            style = STYLES.get(self._state, "blue")
            self._print(styled((f"● {state_name(self._state)}", style), (took, "dim")))
            self._console.print()

    def note(self, text: str) -> None:
        """Show a line about the conversation itself."""
        self._print(styled((f"· {text}", "dim")))

    def line(self, text: str) -> None:
        """Show a line that may be copied: the terminal folds it."""
        self._console.print(styled(f"  {text}"), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        """Return the part that is drawn again: open texts, and the state of the task."""
        height = max(4, self._console.height - 6)
        shown: list[RenderableType] = []
        for each in [each for each in [*self._growing.values()] if each.rest.strip()]:
            if each is not self._titled and (each.name != "answer" or self._titled):
                shown.append(_title(each.name))
            body = AgentMarkdown(_last(each.rest))
            shown.append(Padding(_Trimmed(body, OTHER_LINES if shown[1:] else height), (0, 2)))
        return Group(*shown, "", self._foot()) if shown else self._foot()

    def _foot(self) -> RenderableType:
        seconds = time.monotonic() - self._began
        is_sent = self._state is TaskState.SUBMITTED
        words = [(f"{self._doing or (state_name(self._state) if not is_sent else 'sent')}", "")]
        words += [(f" · {seconds:.0f} s", "dim")] if seconds >= 1 else []
        words += [(f" · {self._hint}", "dim")] if self._hint and seconds >= 2 else []
        text = styled(*words)
        text.truncate(self._console.width - 6, overflow="ellipsis")
        self._spinner.update(text=text)
        return Padding(self._spinner, (0, 2))

    # -- how it is shown -----------------------------------------------------------------------

    def _print(self, what: RenderableType) -> None:
        self._console.print(Padding(what, (0, 2)))

    def _grew(self) -> None:
        for each in [*self._growing.values()]:
            end = len(each.text) if each.is_complete else each.shown + finished(each.rest)
            if (block := each.text[each.shown : end]).strip():
                if self._titled is not each and (each.name != "answer" or self._titled):
                    self._console.print(_title(each.name))
                self._titled = each
                self._print(_Trimmed(AgentMarkdown(block)))
                self._console.print()
            each.shown = max(end, each.shown)
            if not each.is_complete and each.text:
                return  # artifacts behind this one are printed when it is complete

    def _text(self, label: str, text: str) -> None:
        self._print(_Trimmed(AgentMarkdown(text)))
        self._console.print()
        self._titled = None

    def _part(self, part: Part, name: str) -> None:
        if not part.is_file:
            self._text(name, f"```json\n{json_text(part.data, indent=2)}\n```")
            return
        if part.raw and (picture := half_blocks(part.raw, min(PICTURE, self._console.width - 8))):
            self._print(picture)
        self._print(styled(("▪ ", "cyan"), self._file_line(part, name)))

    def _working(self, text: str) -> None:
        self._doing = text

    def _step(self, text: str) -> None:
        self._print(styled((f"› {text}", "dim")))

    def _stands(self, state: TaskState) -> None:
        self._doing = ""


def _title(name: str) -> RenderableType:
    return Padding(Rule(styled((name, "bold magenta")), align="left", style="dim"), (0, 2))


def _last(text: str) -> str:
    """Return the end of a text that is short enough to be drawn often, in its code fence."""
    if len(text) <= MAX_LIVE:
        return text
    fence = text.lstrip()[:3]
    return (f"{fence}\n" if fence in ("```", "~~~") else "") + text[-MAX_LIVE:]
