"""Pictures of compositions as SVG, for pages that load nothing from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from parley.compose.drawing import IN, MOST_NODES, OUT, Drawable, Edge, line_of

CHARACTER = 7.2
"""The width of a character, at most."""

HEIGHT, GAP, SPACE, PAD, TITLE, END = 34.0, 14.0, 56.0, 14.0, 22.0, 70.0


@dataclass
class _Box:
    """A part with its place: a box, and what is in it if it is a composition."""

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
    """The boxes of one composition, beside and below each other, and the arrows between them."""

    width: float
    height: float
    boxes: list[_Box] = field(default_factory=list)
    edges: tuple[Edge, ...] = ()


def svg_of(composition: Drawable) -> str:
    """Return a picture of a composition; nested ones are boxes with what is in them."""
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
    """Return the boxes of a composition in columns: each right of all that lead to it."""
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
    """Return the column of each part: after all that lead to it from before it."""
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
    if x2 <= x1:  # back to an earlier part: over the top
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
