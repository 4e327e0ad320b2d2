"""What a turn said on the way, when it ends without a word: shown, and never that of another."""

from __future__ import annotations

from msgspec.structs import replace

from parley.client.calls.stream_reader import new_output, with_final_text
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import Task, TaskState, TaskStatus

QUESTION = Message(message_id="q", role=Role.AGENT, parts=(Part(text="which?"),))
SAID = Message(message_id="s", role=Role.AGENT, parts=(Part(text="this one"),))
DRAFT = Artifact(artifact_id="a", parts=(Part(text="draft"),))
BEFORE = Task(
    id="t",
    context_id="c",
    status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=QUESTION),
    artifacts=(DRAFT,),
)
ENDED = replace(BEFORE, status=TaskStatus(state=TaskState.COMPLETED))


def test_what_a_turn_said_is_shown_beside_artifacts_of_earlier_turns() -> None:
    assert new_output(BEFORE, with_final_text(ENDED, SAID, BEFORE)).text == "this one"


def test_what_was_asked_before_is_not_what_the_turn_said() -> None:
    assert with_final_text(ENDED, QUESTION, BEFORE) == ENDED
    bare = replace(ENDED, artifacts=())
    assert with_final_text(bare, QUESTION, replace(BEFORE, artifacts=())) == bare


def test_a_turn_that_has_text_is_left_as_it_is() -> None:
    more = replace(ENDED, artifacts=(DRAFT, replace(DRAFT, artifact_id="b")))
    assert with_final_text(more, SAID, BEFORE) == more
