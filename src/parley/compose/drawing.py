"""Pictures of compositions, in the language of Mermaid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from parley.compose.parts import CompositionPart

IN, OUT = -1, 1_000_000
"""The ends of a drawing: where the message comes in, and where the answer goes out."""

MOST_NODES = 200
"""How many parts are drawn; of more, their compositions are drawn closed."""


class Edge(NamedTuple):
    """An arrow of a drawing, from one part to another, by their positions (from 0).

    ``start`` may be ``IN``, ``end`` may be ``OUT``. ``label`` says when, or what.
    """

    start: int
    end: int
    label: str = ""


class Drawable:
    """What can be drawn: parts, the arrows between them, and the combinator's name."""

    parts: tuple[CompositionPart, ...]
    edges: tuple[Edge, ...]
    kind: str


def in_order(count: int, label: str = "") -> tuple[Edge, ...]:
    """Return the arrows from one part to the next."""
    between = [Edge(index, index + 1, label) for index in range(count - 1)]
    return (Edge(IN, 0), *between, Edge(count - 1, OUT))


def side_by_side(count: int, label: str = "") -> tuple[Edge, ...]:
    """Return the arrows through parts that all get the message."""
    return (
        *[Edge(IN, index, label) for index in range(count)],
        *[Edge(index, OUT) for index in range(count)],
    )


def drawn(composition: Drawable) -> str:
    """Return a flow chart of a composition; nested ones are boxes with what is in them."""
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
    """Return a text as one short line that can be shown, whoever wrote it."""
    line = re.sub(r"\s+", " ", text).strip()[:80]
    return "".join(each if each.isprintable() else "?" for each in line)


def _text(text: str) -> str:
    """Return a text as Mermaid shows it, whoever wrote it: no mark of the language is left."""
    line = line_of(text)
    return "".join(
        each if each.isalnum() or each in " .,:/-_+'" else f"#{ord(each)};" for each in line
    )
