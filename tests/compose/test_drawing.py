"""Diagrams of compositions: for Mermaid, on the card, and on the agent's page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from parley.compose import parallel, part, sequence
from parley.compose.drawing import MOST_NODES
from tests.compose.parts import Worker


async def shout(text: str) -> str:
    return text.upper()


def test_a_nested_composition_is_a_box_with_its_parts() -> None:
    one, two, writer = (Worker(name).agent for name in ("One", "Two", "Writer"))
    inner = parallel(one, "https://kb.test/agent", two, combine=writer, name="Inner")
    assert sequence(shout, inner, name="Outer").mermaid() == (
        """flowchart LR
    in(["message"])
    out(["answer"])
    p1[["Shout"]]
    subgraph p2["Inner (parallel)"]
        p2in((" "))
        p2out((" "))
        p2_1["One"]
        p2_2("agent")
        p2_3["Two"]
        p2_4["Writer"]
        p2in --> p2_1
        p2in --> p2_2
        p2in --> p2_3
        p2_1 --> p2_4
        p2_2 --> p2_4
        p2_3 --> p2_4
        p2_4 --> p2out
    end
    in --> p1
    p1 --> p2in
    p2out --> out
"""
    )


@pytest.mark.parametrize(
    "name", ['"] --> x', "a\nend\nb", "<script>alert(1)</script>", "%%{init}%%", "\u202ereversed"]
)
def test_a_name_is_no_language_of_the_picture(name: str) -> None:
    agent = sequence(part(shout, name=name), name="Line")
    assert len(agent.mermaid().splitlines()) == 6
    [node] = [line for line in agent.mermaid().splitlines() if "p1[[" in line]
    assert re.fullmatch(r'    p1\[\["[\w #;.,:/+\'-]*"\]\]', node)
    texts = [each.text for each in ElementTree.fromstring(agent.svg()).iter() if each.text]
    assert len(texts) == 3


def test_what_is_large_is_drawn_closed_and_in_bounds() -> None:
    wide = parallel(*[part(shout, name=f"f{n}") for n in range(50)], name="Wide")
    whole = sequence(*[part(wide, name=f"w{n}") for n in range(40)], name="Whole")
    assert whole.mermaid().count("-->") < 3 * MOST_NODES
    assert len(whole.svg()) < 200_000
