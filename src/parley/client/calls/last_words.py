"""What is left to say of a task that ended without a word, or in a state that nobody knows."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from parley.client.calls.difference import news
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState

logger = logging.getLogger(__name__)

MOST_LOOKS = 30


def with_last_words(task: Task, said: Message | None, before: Task | None = None) -> Task:
    """Return a task with what its agent ``said`` before, if it ended without any text.

    The message joins the history, where the protocol has it: some agents keep none. Of a task that
    was continued, the turn counts: what it has or said ``before`` is no part of it.
    """
    if said is None or not said.text or not task.state.is_terminal:
        return task
    told = replace(task, history=(*task.history, said))
    if before is None:
        return task if task.text else told
    return told if not news(before, task).text and news(before, told).text else task


class Looks:
    """Looks at a task that is in no state that is known, so that it might never end."""

    def __init__(self) -> None:
        self._before: Task | None = None
        self._count = 0

    def are_enough(self, task: Task) -> bool:
        """Whether the task stays in an unknown state without anything new, look after look.

        Some agents have states of their own; one that does not change is taken for the last.
        """
        self._count = self._count + 1 if task == self._before else 0
        self._before = task
        enough = task.state is TaskState.UNSPECIFIED and self._count >= MOST_LOOKS
        if enough:
            logger.warning(
                "task %.100r stays in a state that is unknown here; it is taken as it stands",
                task.id,
            )
        return enough
