"""The report of a call: the task or the message, and the next command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.rendering import (
    EventWriter,
    write_history,
    write_message,
    write_metadata,
    write_page,
    write_task,
)
from parley.client.calls.stream_reader import new_output
from parley.extensions.questions import Question, auth_request, question
from parley.model.operations import ListTasksResponse, SendMessageResponse, StreamResponse
from parley.model.parts import Message
from parley.model.tasks import Event, Task, TaskState, TaskStatus

MAX_PROPERTIES = 6
"""How many properties of an answer the next command shows."""

_OUTCOMES = {
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "was rejected",
    TaskState.CANCELED: "was canceled",
    TaskState.INPUT_REQUIRED: "needs input",
    TaskState.AUTH_REQUIRED: "needs authorization",
}


class Report:
    """Writes the results of one command in the chosen format."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call
        self._output = call.output
        self._settings = call.settings
        self._events = EventWriter(
            call.output.text, sys.stdout.flush, verbose=call.settings.verbose
        )

    def answer(self, answer: Task | Message) -> None:
        """Report the answer to a message."""
        if self._output.is_json:
            self._output.document(SendMessageResponse.of(answer))
        elif isinstance(answer, Message):
            write_message(self._output.text, answer, verbose=self._settings.verbose)
        else:
            self._write_task(answer)
        self.next_step(answer)

    def task(self, task: Task) -> None:
        """Report a requested task."""
        if self._output.is_json:
            self._output.document(task)
        else:
            self._write_task(task)
        self.next_step(task)

    def page(self, page: ListTasksResponse, filters: Sequence[str]) -> None:
        """Report a page of tasks; when streaming, one task a line.

        ``filters`` are the flags for the next page.
        """
        if self._output.is_json and self._output.is_stream:
            for task in page.tasks:
                self._output.document(task)
        elif self._output.is_json:
            self._output.document(page)
        else:
            write_page(self._output.text, page, verbose=self._settings.verbose)
        if page.next_page_token:
            flags = (*filters, "--page-token", page.next_page_token)
            self._write_next(self._call.command("task list", *flags))

    def event(self, event: Event) -> None:
        """Report an event of a stream."""
        if self._output.is_json:
            self._output.document(StreamResponse.of(event))
        else:
            self._events.event(event, before=self._call.before)

    def sent(self, message: Message) -> None:
        """Show the sent message, if verbose."""
        if self._settings.verbose and not self._output.is_json:
            write_message(self._output.text, message, verbose=True, label="Sent")
            write_metadata(self._output.text, self._settings.metadata)
            self._output.text.gap()

    def _write_task(self, task: Task) -> None:
        write, verbose = self._output.text, self._settings.verbose
        before = self._call.before
        new = task if before is None else new_output(before, task)
        write_task(write, new, verbose=verbose)
        old = {artifact.artifact_id for artifact in task.artifacts}
        old -= {artifact.artifact_id for artifact in new.artifacts}
        if old:
            what = "one artifact is" if len(old) == 1 else f"{len(old)} artifacts are"
            shows = self._call.command("task get")
            self._output.note(f"{what} of earlier turns, and not shown; for all of it: {shows}")
        if verbose or self._settings.history:
            write_history(write, task.history, verbose=verbose)

    def next_step(self, answer: Task | Message) -> None:
        """Report an outcome that is not success on stderr, and print the next command."""
        command = self._call.command
        if isinstance(answer, Task):
            self._call.task_id = answer.id
            self._warn(answer.id, answer.status)
            if (request := auth_request(answer)) is not None:
                if request.authorization_url:
                    self._output.warn(f"log in at {request.authorization_url}")
                else:
                    self._write_next(command("task authorize"))
                return
            if answer.state.is_interrupted:
                asked = question(answer)
                reply = "<reply>" if asked is None else _data_reply(asked)
                self._write_next(command("send", "--task-id", answer.id, reply))
                return
            if not answer.state.is_terminal:
                self._write_next(command("task get --wait"))
                return
        if answer.context_id and not self._output.is_json:
            self._write_next(command("send", "--context-id", answer.context_id, "<message>"))

    def _warn(self, task_id: str, status: TaskStatus) -> None:
        outcome = _OUTCOMES.get(status.state)
        if outcome is None:
            return
        detail = f": {status.message.text}" if status.message and status.message.text else ""
        self._output.warn(f"task {task_id} {outcome} ({status.state.value}){detail}")

    def _write_next(self, command: str) -> None:
        if self._output.is_json:
            self._output.note(f"next: {command}")
        else:
            self._output.text.field("Next", self._output.redact(command))


def _data_reply(asked: Question) -> str:
    """Return what to send in answer to a question with a schema: JSON, with its properties.

    Only plain names go into a command that people copy.
    """
    properties = asked.schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "<reply>"
    if not all(name.isascii() and name.isidentifier() and len(name) < 50 for name in properties):
        return "<reply as JSON>"
    names = [f'"{name}": ...' for name in list(properties)[:MAX_PROPERTIES]]
    if len(properties) > MAX_PROPERTIES:
        names.append("...")
    return "{" + ", ".join(names) + "}"
