"""A small picture on a terminal: two pixels per character, as upper and lower half blocks."""

from __future__ import annotations

import struct
import zlib

from rich.text import Text

MAX_PIXELS = 1_000_000  # more is not for a terminal


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
