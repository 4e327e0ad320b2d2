"""Answers with several artifacts, drawn and in plain lines."""

import io
from itertools import pairwise

import pytest

from parley.cli.output.answer import PlainAnswer, block_ends
from parley.cli.output.rich_answer import RichAnswer, TextConsole
from parley.model.parts import Artifact, Part
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent

IDS = {"task_id": "t", "context_id": "c"}


def chunk(name, text, append=True, last=False):
    artifact = Artifact(artifact_id=name, name=name, parts=(Part(text=text),))
    return TaskArtifactUpdateEvent(**IDS, artifact=artifact, append=append, last_chunk=last)


EVENTS = [
    chunk("one.md", "First\n\n", append=False),
    chunk("two.md", "Second\n\nof two", append=False),
    chunk("one.md", "of one"),
    chunk("two.md", "Again\n", append=False),
    chunk("one.md", ".\n", last=True),
    TaskStatusUpdateEvent(**IDS, status=TaskStatus(state=TaskState.COMPLETED)),
]


@pytest.mark.anyio
async def test_artifacts_that_grow_together_are_drawn_one_after_the_other():
    console = TextConsole(40)
    console.file = io.StringIO()
    with RichAnswer(console) as answer:
        for event in EVENTS:
            answer.event(event)
    lines = [line.strip(" ─") for line in console.file.getvalue().splitlines()]
    assert [line for line in lines if line] == [
        "one.md",
        "First",
        "· two.md is replaced: the agent",
        "began it again",
        "of one.",
        "two.md",
        "Again",
        "● completed",
    ]


def test_plain_lines_name_their_artifact(capsys):
    with PlainAnswer() as answer:
        for event in EVENTS:
            answer.event(event)
    assert capsys.readouterr().out.splitlines() == [
        "  one.md   First",
        "  two.md   Second",
        "  note     two.md is replaced: the agent began it again",
        "  two.md   Again",
        "  one.md   of one.",
        "  task     completed",
    ]


def test_a_block_of_code_or_of_a_list_is_not_cut():
    text = "a\n\n```\nb\n\nc\n```\n\n- d\n\n  e\n\nf"
    ends = [0, *block_ends(text), len(text)]
    pieces = [text[begin:end].strip() for begin, end in pairwise(ends)]
    assert pieces == ["a", "```\nb\n\nc\n```", "- d\n\n  e", "f"]
