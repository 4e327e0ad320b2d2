"""Pictures of compositions, in Mermaid's language and as SVG without external resources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from parley.compose.parts import CompositionPart

IN, OUT = -1, 1_000_000
"""The ends of a drawing: the incoming message, and the outgoing answer."""

MOST_NODES = 200
"""The maximum number of drawn parts. Beyond it nested compositions are drawn without content."""


class Edge(NamedTuple):
    """An arrow of a drawing, from one part to another, by their positions (from 0).

    ``start`` may be ``IN``, ``end`` may be ``OUT``. ``label`` is the condition or the content.
    """

    start: int
    end: int
    label: str = ""


class Drawable:
    """An object that can be drawn: parts, the arrows between them, and the combinator's name."""

    parts: tuple[CompositionPart, ...]
    edges: tuple[Edge, ...]
    kind: str


def in_order(count: int, label: str = "") -> tuple[Edge, ...]:
    """Return the arrows that lead from each part to the next."""
    between = [Edge(index, index + 1, label) for index in range(count - 1)]
    return (Edge(IN, 0), *between, Edge(count - 1, OUT))


def side_by_side(count: int, label: str = "") -> tuple[Edge, ...]:
    """Return the arrows through parts that work in parallel."""
    return (
        *[Edge(IN, index, label) for index in range(count)],
        *[Edge(index, OUT) for index in range(count)],
    )


def drawn(composition: Drawable) -> str:
    """Return a flow chart of a composition; nested compositions are boxes with their parts
    inside."""
    lines = ["flowchart LR", '    in(["message"])', '    out(["answer"])']
    lines += _inside(composition, "p", "in", "out", 1, [0])
    return "\n".join(lines) + "\n"


def _inside(
    composition: Drawable, prefix: str, start: str, end: str, depth: int, count: list[int]
) -> list[str]:
    indent = "    " * depth
    lines: list[str] = []
    ends: dict[int, tuple[str, str]] = {IN: (start, start), OUT: (end, end)}
    for index, part in enumerate(composition.parts):
        node = f"{prefix}{index + 1}"
        count[0] += 1
        agent = part.agent
        if isinstance(agent, Drawable) and count[0] + len(agent.parts) <= MOST_NODES:
            first, last = f"{node}in", f"{node}out"
            lines += [
                f'{indent}subgraph {node}["{_text(part.name)} ({_text(agent.kind)})"]',
                f'{indent}    {first}((" "))',
                f'{indent}    {last}((" "))',
                *_inside(agent, f"{node}_", first, last, depth + 1, count),
                f"{indent}end",
            ]
            ends[index] = (first, last)
        else:
            lines.append(indent + _node(node, part.name, _shape(part.function, agent)))
            ends[index] = (node, node)
    for edge in composition.edges:
        label = f"|{_text(edge.label)}|" if edge.label else ""
        lines.append(f"{indent}{ends[edge.start][1]} -->{label} {ends[edge.end][0]}")
    return lines


def _shape(function: object, agent: object) -> Sequence[str]:
    if function is not None:
        return ("[[", "]]")
    return ("[", "]") if agent is not None else ("(", ")")


def _node(id: str, name: str, shape: Sequence[str]) -> str:
    return f'{id}{shape[0]}"{_text(name)}"{shape[1]}'


def line_of(text: str) -> str:
    """Return any author's text as one short printable line."""
    line = re.sub(r"\s+", " ", text).strip()[:80]
    return "".join(each if each.isprintable() else "?" for each in line)


def _text(text: str) -> str:
    """Return any author's text for Mermaid, without characters of its syntax."""
    line = line_of(text)
    return "".join(
        each if each.isalnum() or each in " .,:/-_+'" else f"#{ord(each)};" for each in line
    )


CHARACTER = 7.2
"""The maximum width of a character."""

HEIGHT, GAP, SPACE, PAD, TITLE, END = 34.0, 14.0, 56.0, 14.0, 22.0, 70.0


@dataclass
class _Box:
    """A positioned box for a part. The box of a composition contains its parts."""

    label: str
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    is_step: bool = False
    is_near: bool = True
    inside: _Layout | None = None


@dataclass
class _Layout:
    """The boxes of one composition in columns and rows, and the arrows between them."""

    width: float
    height: float
    boxes: list[_Box] = field(default_factory=list)
    edges: tuple[Edge, ...] = ()


def svg_of(composition: Drawable) -> str:
    """Return an SVG of a composition; nested compositions are boxes with their parts inside."""
    layout = _laid_out(composition, [0])
    width, height = layout.width + 2 * (END + SPACE + PAD), max(layout.height, HEIGHT) + 2 * PAD
    middle = height / 2
    x = PAD + END + SPACE
    shapes = [_end(PAD, middle, "message"), _end(width - PAD - END, middle, "answer")]
    arrows: list[str] = []
    _draw(layout, x, (height - layout.height) / 2, shapes, arrows, (PAD + END, middle),
          (width - PAD - END, middle))  # fmt: skip
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="system-ui, sans-serif" '
        'font-size="13"><defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#5a6470"/></marker></defs>'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>{"".join(shapes)}'
        f"{''.join(arrows)}</svg>"
    )


def _laid_out(composition: Drawable, count: list[int]) -> _Layout:
    """Return the boxes of a composition in columns, each to the right of all that lead to it."""
    boxes = []
    for part in composition.parts:
        count[0] += 1
        agent = part.agent
        label = line_of(part.name)
        width = max(60.0, CHARACTER * len(label) + 24)
        if isinstance(agent, Drawable) and count[0] + len(agent.parts) <= MOST_NODES:
            inside = _laid_out(agent, count)
            label = f"{label} ({line_of(agent.kind)})"
            width = max(inside.width + 2 * SPACE / 2 + 2 * PAD, CHARACTER * len(label) + 24)
            box = _Box(label, width, inside.height + TITLE + 2 * PAD, inside=inside)
        else:
            near = agent is not None or part.function is not None
            box = _Box(label, width, HEIGHT, is_step=part.function is not None, is_near=near)
        boxes.append(box)
    ranks = _ranks(len(boxes), composition.edges)
    columns = [[b for b, r in zip(boxes, ranks, strict=True) if r == n] for n in sorted({*ranks})]
    heights = [sum(b.height for b in column) + GAP * (len(column) - 1) for column in columns]
    height, x = max(heights), 0.0
    for column, used in zip(columns, heights, strict=True):
        width, y = max(box.width for box in column), (height - used) / 2
        for box in column:
            box.x, box.y = x + (width - box.width) / 2, y
            y += box.height + GAP
        x += width + SPACE
    return _Layout(x - SPACE, height, boxes, composition.edges)


def _ranks(count: int, edges: tuple[Edge, ...]) -> list[int]:
    """Return the column of each part, which is after all earlier parts that lead to it."""
    ranks = [1] * count
    for end in range(count):
        before = [edge.start for edge in edges if edge.end == end and 0 <= edge.start < end]
        ranks[end] = 1 + max([ranks[start] for start in before], default=0)
    return ranks


def _draw(
    layout: _Layout,
    x: float,
    y: float,
    shapes: list[str],
    arrows: list[str],
    start: tuple[float, float],
    end: tuple[float, float],
) -> None:
    ends: dict[int, tuple[tuple[float, float], tuple[float, float]]] = {
        IN: (start, start),
        OUT: (end, end),
    }
    for index, box in enumerate(layout.boxes):
        left, top = x + box.x, y + box.y
        middle = top + box.height / 2
        ends[index] = (left, middle), (left + box.width, middle)
        shapes.append(_rectangle(box, left, top))
        if box.inside is not None:
            inner = left + (box.width - box.inside.width) / 2
            _draw(box.inside, inner, top + TITLE + PAD, shapes, arrows, (left, middle),
                  (left + box.width, middle))  # fmt: skip
    arrows += [_arrow(ends[e.start][1], ends[e.end][0], e.label) for e in layout.edges]


def _rectangle(box: _Box, x: float, y: float) -> str:
    fill = "#f6f7f9" if box.inside is None else "none"
    dash = ' stroke-dasharray="5 3"' if not box.is_near else ""
    radius = 3 if box.is_step else 8
    text_y = y + (TITLE if box.inside is not None else box.height / 2 + 4.5)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{radius}" fill="{fill}" stroke="#9aa4af"{dash}/>'
        f'<text x="{x + box.width / 2:.1f}" y="{text_y:.1f}" text-anchor="middle" '
        f'fill="#1c2127">{escape(box.label)}</text>'
    )


def _end(x: float, y: float, word: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y - 14:.1f}" width="{END:.1f}" height="28" rx="14" fill="#e8f0fb" '
        f'stroke="#0b57b7"/><text x="{x + END / 2:.1f}" y="{y + 4.5:.1f}" text-anchor="middle" '
        f'font-size="12" fill="#0b57b7">{word}</text>'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], label: str) -> str:
    (x1, y1), (x2, y2) = start, end
    bend = max(20.0, abs(x2 - x1) / 2)
    if x2 <= x1:  # back to an earlier part: an arc above the boxes
        top = min(y1, y2) - HEIGHT
        bends = f"{x1 + 40:.1f} {top:.1f} {x2 - 40:.1f} {top:.1f}"
    else:
        bends = f"{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f}"
    path = f"M{x1:.1f} {y1:.1f}C{bends} {x2:.1f} {y2:.1f}"
    words = ""
    if label:
        words = (
            f'<text x="{(x1 + x2) / 2:.1f}" y="{(y1 + y2) / 2 - 4:.1f}" text-anchor="middle" '
            f'font-size="11" fill="#5a6470">{escape(line_of(label)[:30])}</text>'
        )
    return f'<path d="{path}" fill="none" stroke="#5a6470" marker-end="url(#a)"/>{words}'
