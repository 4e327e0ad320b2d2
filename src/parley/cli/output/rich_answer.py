"""An answer drawn on a terminal: Markdown that grows, one artifact after the other, pictures.

Finished blocks of the front artifact are printed for good. Only the rest is drawn again: its last
block, the last lines of other artifacts, and a line with the state of the task.
"""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
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

from parley.cli.output.answer import Growing, PlainAnswer, block_ends, state_name
from parley.cli.output.text import json_text, one_line, visible
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState

FRAME = 1 / 12  # seconds
PICTURE = 40  # columns
MAX_LIVE = 8_000  # characters that are drawn again and again
STOPS = "Ctrl-C stops"  # in a conversation
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
        full = [
            place for place, line in enumerate(lines) if any(each.text.strip() for each in line)
        ]
        for line in lines[full[0] : full[-1] + 1][-self._height :] if full else ():
            yield from (*line, Segment.line())


class RichAnswer(PlainAnswer):
    """Draws the events of one answer, in a running event loop; see ``PlainAnswer``."""

    def __init__(
        self, console: Console, before: Task | None = None, files: list[Part] | None = None
    ) -> None:
        super().__init__(before, files)
        self._console = console
        self._hint = STOPS if files is not None else ""
        self._began = time.monotonic()
        self._doing = ""
        self._titled: Growing | None = None
        self._spinner = Spinner("dots", style="cyan")
        # Without a thread of its own: it would draw while something else is printed.
        self._live = Live(
            self, console=console, auto_refresh=False, transient=True, redirect_stdout=False,
            redirect_stderr=False, vertical_overflow="crop",
        )  # fmt: skip
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._live.start()
        self._draw()
        return self

    def _draw(self) -> None:
        self._live.refresh()
        self._timer = asyncio.get_running_loop().call_later(FRAME, self._draw)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._timer is not None:
            self._timer.cancel()
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
            if self._has_title(each):
                shown.append(_title(each.name))
            body = AgentMarkdown(_last(each.rest))
            shown.append(Padding(_Trimmed(body, OTHER_LINES if shown[1:] else height), (0, 2)))
        return Group(*shown, "", self._foot()) if shown else self._foot()

    def _has_title(self, each: Growing) -> bool:
        return each is not self._titled and (each.name != "answer" or self._titled is not None)

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
            begin, rest = each.shown, each.rest
            for end in [*block_ends(rest), *([len(rest)] if each.is_complete else ())]:
                block, each.shown = each.text[each.shown : begin + end], begin + end
                if not block.strip():
                    continue
                if self._has_title(each):
                    self._console.print(_title(each.name))
                self._titled = each
                self._print(_Trimmed(AgentMarkdown(block)))
                self._console.print()
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

    def _step(self, label: str, text: str) -> None:
        self._print(styled((f"{label}: {one_line(text)}", "dim")))

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


# -- pictures: a PNG as half blocks, two pixels to a character ------------------------------

MAX_PIXELS = 1_000_000  # larger pictures are not drawn
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Bytes of a pixel by the colour type of a PNG: grey, RGB, palette, and both with alpha."""

Colour = tuple[int, int, int]
Row = list[Colour]


def half_blocks(png: bytes, columns: int, rows: int = 0) -> Text | None:
    """Return a PNG as ``columns`` x ``rows`` characters; ``None`` for an unsupported form.

    Without ``rows`` the picture keeps its proportions. Supported: eight bits, no interlacing.
    """
    try:
        lines = _decode(png)
    except (KeyError, IndexError, ValueError, struct.error, zlib.error):
        return None
    if not lines:
        return None
    height, width = len(lines), len(lines[0])
    rows = rows or max(1, min(30, columns * height // (2 * width)))
    picture = Text()
    for row in range(rows):
        for column in range(columns):
            across = _span(column, columns, width)
            upper, lower = (
                _mean(lines, across, _span(2 * row + half, 2 * rows, height)) for half in (0, 1)
            )
            picture.append("▀", f"{upper} on {lower}")
        picture.append("\n")
    picture.rstrip()
    return picture


def _span(index: int, count: int, size: int) -> range:
    begin = index * size // count
    return range(begin, max(begin + 1, (index + 1) * size // count))


def _mean(lines: Sequence[Row], across: range, down: range) -> str:
    colours = [lines[y][x] for y in down for x in across]
    red, green, blue = (sum(values) // len(colours) for values in zip(*colours, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _decode(png: bytes) -> list[Row]:
    """Return the colours of the pixels, over black; an empty list for an unsupported form."""
    if not png.startswith(b"\x89PNG\r\n\x1a\n"):
        return []
    chunks: dict[bytes, bytes] = {}
    offset = 8
    while offset + 12 <= len(png):
        size, kind = struct.unpack(">I4s", png[offset : offset + 8])
        chunks[kind] = chunks.get(kind, b"") + png[offset + 8 : offset + 8 + size]
        offset += size + 12
    width, height, depth, colour, *form = struct.unpack(">2I5B", chunks[b"IHDR"])
    if depth != 8 or form != [0, 0, 0] or not 0 < width * height <= MAX_PIXELS:
        return []
    count = CHANNELS[colour]
    pixels = zlib.decompressobj().decompress(chunks[b"IDAT"], (width * count + 1) * height)
    palette = [tuple(chunks[b"PLTE"][i : i + 3]) for i in range(0, len(chunks[b"PLTE"]), 3)] \
        if colour == 3 else []  # fmt: skip
    return [
        [_colour(line[x : x + count], palette) for x in range(0, width * count, count)]
        for line in _unfiltered(pixels, width * count, height, count)
    ]


def _colour(pixel: bytes, palette: Sequence[tuple[int, ...]]) -> Colour:
    if palette:
        red, green, blue = palette[pixel[0]]
        return red, green, blue
    alpha = pixel[-1] if len(pixel) in (2, 4) else 255
    red, green, blue = pixel[:1] * 3 if len(pixel) < 3 else pixel[:3]
    return red * alpha // 255, green * alpha // 255, blue * alpha // 255


def _unfiltered(pixels: bytes, size: int, height: int, count: int) -> Iterator[bytes]:
    """Yield the lines of a picture without their filters (PNG specification, §9)."""
    above = bytes(size)
    for y in range(height):
        begin = y * (size + 1)
        kind, line = pixels[begin], bytearray(pixels[begin + 1 : begin + 1 + size])
        if len(line) < size:
            raise ValueError("the picture is cut")
        if kind == 1:
            for first in range(count):
                sums = accumulate(line[first::count], lambda left, byte: (left + byte) & 255)
                line[first::count] = bytes(sums)
        elif kind == 2:
            line = bytearray((a + b) & 255 for a, b in zip(line, above, strict=True))
        elif kind in (3, 4):
            for i in range(size):
                left, corner = (line[i - count], above[i - count]) if i >= count else (0, 0)
                guess = (left + above[i]) // 2 if kind == 3 else _paeth(left, above[i], corner)
                line[i] = (line[i] + guess) & 255
        yield (above := bytes(line))


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
