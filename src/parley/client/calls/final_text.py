"""The final text of a task that ends without one: the last thing that its agent said before."""

from __future__ import annotations

from msgspec.structs import replace

from parley.client.calls.diff import new_output
from parley.model.parts import Message
from parley.model.tasks import Task


def with_final_text(task: Task, last_message: Message | None, before: Task | None = None) -> Task:
    """Return a task with its agent's ``last_message`` in the history, if it ended without any text.

    Some agents keep no history. Of a task that a message continued only the output of its turn
    counts: text that was there ``before`` is not part of it.
    """
    if last_message is None or not last_message.text or not task.state.is_terminal:
        return task
    extended = replace(task, history=(*task.history, last_message))
    if before is None:
        return task if task.text else extended
    is_missing = not new_output(before, task).text and new_output(before, extended).text
    return extended if is_missing else task
