"""The versions of the artifacts in a context, and messages about them.

A finished task never changes, so a changed artifact is an artifact with the same name in a new task
of the same context. The module only computes values; it calls no agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec
from msgspec import UNSET, UnsetType

from parley.client.answer import Answer
from parley.client.calls.stream_reader import FoldedTask
from parley.client.message import Sendable, to_message
from parley.model.parts import (
    ARTIFACT_KEY,
    TASK_KEY,
    Artifact,
    Message,
    Part,
    Role,
    artifacts_named,
    tasks_named,
)
from parley.model.struct import Timestamp
from parley.model.tasks import Event, Task, TaskState, TaskStatus

Key = tuple[str, str]
"""The id of a task and of its artifact."""

_UNUSABLE = (
    *(TaskState.UNSPECIFIED, TaskState.SUBMITTED, TaskState.WORKING),
    *(TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED),
)
"""The states of a task without usable artifacts: it has not finished, or has not succeeded."""


class ArtifactVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an artifact, made by one task.

    ``number`` counts the versions of the ``name``, from 1. ``predecessor`` is the version that the
    task's message referred to, if any. ``is_usable`` is false if the task has not finished, or has
    failed. ``verdict`` is set by ``accept`` and ``reject``.
    """

    name: str
    number: int
    task_id: str
    artifact: Artifact
    predecessor: ArtifactVersion | None = None
    is_usable: bool = True
    verdict: Literal["", "accepted", "rejected"] = ""

    def __repr__(self) -> str:
        about = f", {self.verdict}" if self.verdict else ""
        return f"<version {self.number} of {self.name!r} by task {self.task_id}{about}>"

    @property
    def key(self) -> Key:
        """The ids of the task and the artifact, which identify the version."""
        return self.task_id, self.artifact.artifact_id


class _Accepted(NamedTuple):
    """The last accepted version of a name; ``newest`` was the number of the newest version then."""

    key: Key
    newest: int


class ArtifactVersions:
    """The versions of the artifacts of one context, by name.

    Pass every task and event of the context to ``add``, or begin with a list of tasks (``of``). The
    name of an artifact without a name is its id. ``message`` makes the next message, with
    references to the versions that it concerns.
    """

    def __init__(self, context_id: str = "") -> None:
        self.context_id = context_id
        self._tasks: dict[str, FoldedTask] = {}
        self._accepted: dict[str, _Accepted] = {}
        self._verdicts: dict[Key, Literal["accepted", "rejected"]] = {}

    @classmethod
    def of(cls, tasks: Iterable[Task | Answer[Any]]) -> Self:
        """Return the versions in the tasks of a context, as ``RemoteAgent.tasks`` lists them.

        List them with artifacts (``include_artifacts=True``), and with the history, which is needed
        to find predecessors. Versions are in the order of their tasks' last status.
        """
        versions = cls()
        listed = list(tasks)[::-1]  # a list begins with the task that was updated last
        for task in sorted(listed, key=lambda task: task.status.timestamp or _BEFORE_ALL):
            versions.add(task)
        return versions

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the artifacts, in the order of their first versions."""
        return tuple(dict.fromkeys(name for _, name, _ in self._all()))

    def add(self, item: Event | Answer[Any]) -> None:
        """Add an answer, the current state of a task, or an event. Direct messages are ignored.

        Raises ``ValueError`` for a task of another context.
        """
        item = item.reply if isinstance(item, Answer) else item
        if isinstance(item, Message):
            return
        if self.context_id and item.context_id and item.context_id != self.context_id:
            raise ValueError(
                f"these are the versions of the context {self.context_id!r}, and the task belongs "
                f"to {item.context_id!r}; make an ArtifactVersions for each context"
            )
        self.context_id = self.context_id or item.context_id
        if isinstance(item, Task):
            self._tasks[item.id] = FoldedTask(item)
            return
        task = self._tasks.get(item.task_id)
        if task is None:
            status = TaskStatus(state=TaskState.WORKING)
            begun = Task(id=item.task_id, context_id=item.context_id, status=status)
            task = self._tasks[item.task_id] = FoldedTask(begun)
        if not task.task.state.is_terminal:  # the whole task may be added before its events
            task.add(item)

    # -- queries -------------------------------------------------------------------------------

    def versions(self, name: str) -> tuple[ArtifactVersion, ...]:
        """Return all versions of an artifact, the first one first."""
        found: list[ArtifactVersion] = []
        for task, artifact_name, artifact in self._all():
            if artifact_name != name:
                continue
            version = ArtifactVersion(
                name=name,
                number=len(found) + 1,
                task_id=task.id,
                artifact=artifact,
                predecessor=_predecessor(task, found),
                is_usable=task.state not in _UNUSABLE,
                verdict=self._verdicts.get((task.id, artifact.artifact_id), ""),
            )
            found.append(version)
        return tuple(found)

    def latest(self, name: str) -> ArtifactVersion | None:
        """Return the newest version that is usable and not rejected."""
        good = (v for v in self.versions(name)[::-1] if v.is_usable and v.verdict != "rejected")
        return next(good, None)

    def base(self, name: str) -> ArtifactVersion | None:
        """Return the version that the next message refers to.

        That is the last accepted version until there is a newer one, else the latest version.
        """
        latest, accepted = self.latest(name), self._accepted.get(name)
        if accepted is None or (latest is not None and latest.number > accepted.newest):
            return latest
        return next((v for v in self.versions(name) if v.key == accepted.key), latest)

    def _all(self) -> list[tuple[Task, str, Artifact]]:
        return [
            (folded.task, artifact.name or artifact.artifact_id, artifact)
            for folded in self._tasks.values()
            for artifact in folded.task.artifacts
        ]

    # -- verdicts ------------------------------------------------------------------------------

    def accept(self, version: ArtifactVersion | Key | None) -> None:
        """Refer to a version in the next messages, even if there are newer ones.

        Raises ``ValueError`` for an unknown version, and for ``None``.
        """
        found = self._known(version)
        self._verdicts[found.key] = "accepted"
        self._accepted[found.name] = _Accepted(found.key, len(self.versions(found.name)))

    def reject(self, version: ArtifactVersion | Key | None) -> None:
        """Refer to this version in no further message.

        Raises ``ValueError`` for an unknown version, and for ``None``.
        """
        found = self._known(version)
        self._verdicts[found.key] = "rejected"
        accepted = self._accepted.get(found.name)
        if accepted is not None and accepted.key == found.key:
            del self._accepted[found.name]

    def _known(self, version: ArtifactVersion | Key | None) -> ArtifactVersion:
        key = version.key if isinstance(version, ArtifactVersion) else version
        for name in self.names:
            for known in self.versions(name):
                if known.key == key:
                    return known
        raise ValueError(
            f"there is no version {version!r} here; the versions are: {self._described()}"
        )

    def _described(self) -> str:
        return ", ".join(repr(v) for name in self.names for v in self.versions(name)) or "none"

    # -- the next message ----------------------------------------------------------------------

    def references(self, *names: str) -> tuple[str, ...]:
        """Return the ids of the tasks that the next message about these artifacts refers to.

        Pass them to ``RemoteAgent.send(references=...)``; ``message`` names the artifacts too.
        Raises ``ValueError`` for an unknown name.
        """
        return tuple(dict.fromkeys(base.task_id for base in self._bases(names)))

    def message(
        self,
        content: Sendable | None,
        *names: str,
        files: Sequence[str | Path | bytes | Part] = (),
        data: Any | UnsetType = UNSET,
        metadata: dict[str, Any] | None = None,
    ) -> Message:
        """Return a message about these artifacts, for ``RemoteAgent.send`` and ``stream``.

        It belongs to the context and refers to the task of each artifact's ``base``. Each artifact
        is named in the metadata of a part (``taskId``, ``artifactId``): the first artifact in the
        first part, and so on. If there are too few parts, parts with the artifact's name are added.
        An artifact is left out if all of its versions are rejected or unusable.

        Raises ``ValueError`` for an unknown name, and for a message without parts.
        """
        bases = self._bases(names)
        message = to_message(
            content,
            context_id=self.context_id or None,
            files=files,
            data=data,
            metadata=metadata,
            references=list(dict.fromkeys(base.task_id for base in bases)),
        )
        parts = list(message.parts)
        for position, base in enumerate(bases):
            if position == len(parts):
                parts.append(Part(text=base.name))
            named = {TASK_KEY: base.task_id, ARTIFACT_KEY: base.artifact.artifact_id}
            part = parts[position]
            parts[position] = msgspec.structs.replace(
                part, metadata={**(part.metadata or {}), **named}
            )
        return msgspec.structs.replace(message, parts=tuple(parts))

    def _bases(self, names: Sequence[str]) -> list[ArtifactVersion]:
        known = self.names
        for name in names:
            if name not in known:
                raise ValueError(
                    f"there is no artifact {name!r} in this context; there are: "
                    f"{', '.join(map(repr, known)) or 'none'}"
                )
        return [base for name in dict.fromkeys(names) if (base := self.base(name)) is not None]


_BEFORE_ALL = Timestamp.parse("0001-01-01T00:00:00Z")


def _predecessor(task: Task, earlier: Sequence[ArtifactVersion]) -> ArtifactVersion | None:
    """Return the version among the ``earlier`` ones that a task's message referred to."""
    message = next((m for m in task.history if m.role is Role.USER), None)
    if message is None:
        return None
    tasks, artifacts = tasks_named(message), artifacts_named(message)
    for version in reversed(earlier):
        for named in artifacts:
            is_named = named.artifact_id == version.artifact.artifact_id
            if is_named and named.task_id in ("", version.task_id):
                return version
    return next((v for v in reversed(earlier) if v.task_id in tasks), None)
