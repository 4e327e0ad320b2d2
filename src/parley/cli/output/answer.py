"""An answer of an agent as it comes, as labelled lines; ``rich_answer`` draws it on a terminal."""

from __future__ import annotations

from typing import Self

from parley.cli.output.rendering import file_line, progress_line
from parley.cli.output.streams import print_line
from parley.cli.output.text import json_text, one_line, visible
from parley.client.calls.stream_reader import new_output, restates_prior_question
from parley.extensions.questions import auth_request, question
from parley.extensions.usage import run_progress
from parley.model.parts import Artifact, Message, Part
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus


def state_name(state: TaskState) -> str:
    """Return a state in words: ``input required``."""
    return state.name.lower().replace("_", " ")


def labelled(label: str, text: str) -> None:
    """Print a text with its label, as all lines of a plain conversation have one."""
    for number, line in enumerate(visible(text).splitlines() or [""]):
        print_line(f"  {'' if number else one_line(label):<8} {line}".rstrip())


class Growing:
    """An artifact of an answer: its text so far; ``shown`` characters of it are printed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.shown = 0
        self.is_complete = False

    @property
    def rest(self) -> str:
        """The text that is not printed yet."""
        return self.text[self.shown :]


class PlainAnswer:
    """Shows the events of one answer as lines; a context manager.

    ``before`` is the task that the message continues: only its changes are shown. The files of the
    answer are added to ``files``, if given, and named by their numbers there.
    """

    def __init__(self, before: Task | None = None, files: list[Part] | None = None) -> None:
        self._before = before
        self._files = files
        self._growing: dict[str, Growing] = {}
        self._state = TaskState.SUBMITTED
        self._said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._growing.values():
            each.is_complete = True
        self._grew()

    def event(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Message):
            self._message(event)
        elif isinstance(event, TaskArtifactUpdateEvent):
            self._artifact(event.artifact, append=event.append, last=event.last_chunk)
        elif isinstance(event, Task):
            before = self._before
            is_prior = before is not None and restates_prior_question(before, event)
            for artifact in (event if before is None else new_output(before, event)).artifacts:
                self._artifact(artifact, last=event.state.is_terminal, is_event=False)
            if not is_prior:
                self._status(event.status)
        elif (shown := run_progress(event)) is not None:
            if shown["kind"] != "thinking":
                self._step(*progress_line(shown))
        else:
            self._status(event.status)

    def note(self, text: str) -> None:
        """Show a line about the conversation itself, such as a lost connection."""
        labelled("note", text)

    def line(self, text: str) -> None:
        """Show a line that may be copied."""
        labelled("", text)

    # -- contents -------------------------------------------------------------------------------

    def _artifact(
        self, artifact: Artifact, *, append: bool = False, last: bool = False, is_event: bool = True
    ) -> None:
        name = artifact.name or "answer"
        growing = self._growing.get(artifact.artifact_id)
        if growing is None:
            old = () if self._before is None else self._before.artifacts
            if is_event and not append and artifact.artifact_id in [a.artifact_id for a in old]:
                self.note(f"{name} is replaced")
            growing = self._growing[artifact.artifact_id] = Growing(name)
        parts = [part for part in artifact.parts if part.text is None]
        text = "".join(part.text or "" for part in artifact.parts)
        if append:
            growing.text += text
        elif text.startswith(growing.text):
            growing.text = text
        else:
            self.note(f"{name} is replaced: the agent began it again")
            growing.text, growing.shown = text, 0
        growing.is_complete = growing.is_complete or last
        self._grew()
        for part in parts:
            self._part(part, name)

    def _message(self, message: Message) -> None:
        is_asked = question(message) is not None or auth_request(message) is not None
        if text := message.text.strip("\n"):
            self._text("agent", text)
        for part in message.parts:
            if part.text is None and not (is_asked and part.has_data):
                self._part(part, "")

    def _status(self, status: TaskStatus) -> None:
        self._state, message = status.state, status.message
        is_shown = message is None or message.message_id != self._said or not self._said
        if status.state is TaskState.WORKING and message is not None:
            self._working(one_line(message.text))
            return
        if status.state.is_terminal:
            for each in self._growing.values():
                each.is_complete = True
            self._grew()
        if message is not None and is_shown:
            self._said = message.message_id
            self._message(message)
        if status.state is not TaskState.SUBMITTED:
            self._stands(status.state)

    # -- output -------------------------------------------------------------------------------

    def _grew(self) -> None:
        """Show new whole lines of all artifacts, and the rest of complete ones."""
        for each in self._growing.values():
            end = len(each.text) if each.is_complete else each.text.rfind("\n", each.shown) + 1
            if end > each.shown:
                labelled(each.name, each.text[each.shown : end].strip("\n"))
                each.shown = end

    def _text(self, label: str, text: str) -> None:
        labelled(label, text)

    def _part(self, part: Part, name: str) -> None:
        """Show a file or data."""
        if not part.is_file:
            labelled(name or "data", json_text(part.data, indent=2))
            return
        labelled("file", self._file_line(part, name))

    def _file_line(self, part: Part, name: str) -> str:
        if self._files is None:
            return file_line(part, name)
        self._files.append(part)
        return f"{len(self._files)}: {file_line(part, name)}; /save {len(self._files)} saves it"

    def _working(self, text: str) -> None:
        labelled("task", f"working: {text}" if text else "working")

    def _step(self, label: str, text: str) -> None:
        labelled(label.lower(), one_line(text))

    def _stands(self, state: TaskState) -> None:
        labelled("task", state_name(state))


def block_ends(text: str) -> list[int]:
    """Return where the finished blocks of a Markdown text end.

    A block ends at an empty line before a line without an indent, outside of a code fence.
    """
    ends: list[int] = []
    place, fence, is_gap = 0, "", False
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if is_gap and bare and not fence and not line[:1].isspace():
            ends.append(place)
        if bare[:3] in ("```", "~~~") and (not fence or bare.startswith(fence)):
            fence = "" if fence else bare[:3]
        is_gap = not bare
        place += len(line)
    return ends
