"""Pictures for terminals: a PNG as half blocks, two pixels to a character."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

from rich.text import Text

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
