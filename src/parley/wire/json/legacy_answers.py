"""Answers and events as agents write them that follow older texts, put into the form that is due.

Texts of before 0.3 told events apart by their members alone, counted artifacts instead of naming
them, and said of an update no more than the ``id`` of its task; others mix the forms of two
versions. What is already in the form comes out as it went in, so this may be asked of anything that
is not canonical.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from parley.model.tasks import Event, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

Members = dict[str, Any]

_KINDS = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}
_WRAPPERS = {
    "task": "task",
    "message": "message",
    "msg": "message",
    "statusUpdate": "statusUpdate",
    "status_update": "statusUpdate",
    "taskStatusUpdate": "statusUpdate",
    "artifactUpdate": "artifactUpdate",
    "artifact_update": "artifactUpdate",
    "taskArtifactUpdate": "artifactUpdate",
}
_OWN = ("status", "artifact", "parts", "content")
_NOT_SAID = "-"


class Spelling(NamedTuple):
    """How a version spells what others spell differently.

    ``part`` returns a part as the version has it; ``agent`` is the role of who answers.
    """

    states: Mapping[str, str]
    roles: Mapping[str, str]
    agent: str
    part: Callable[[Members], Members]


class Meant(NamedTuple):
    """What an answer or an event is, as 1.0 names it (``statusUpdate``), and its members."""

    name: str
    members: Members
    of_no_task: bool

    def given(self, event: Event) -> Event:
        """Return the event that was read of the members, without an id that nobody said."""
        if self.of_no_task and isinstance(event, TaskStatusUpdateEvent | TaskArtifactUpdateEvent):
            return replace(event, task_id="")
        return event


def meant(value: Any, spelling: Spelling, *, in_stream: bool) -> Meant | None:
    """Return what an answer to a message is, or an event ``in_stream``; ``None`` if nothing known.

    An update without the id of its task is that of the task that the stream is of.
    """
    if not isinstance(value, dict):
        return None
    name, value = _told(value, in_stream)
    match name:
        case "message":
            return Meant(name, _message(value, spelling), False)
        case "task":
            return Meant(name, task(value, spelling), False)
        case "statusUpdate":
            update = _status_of(value, spelling)
        case "artifactUpdate":
            update = _artifact_update(value, spelling)
        case _:
            return None
    id = _first(value, "taskId", "task_id", "id")
    for spelled in ("task_id", "id"):
        update.pop(spelled, None)
    update["taskId"] = id or _NOT_SAID
    return Meant(name, _with_context(update), not id)


def task(value: Any, spelling: Spelling) -> Any:
    """Return a task in the form that is due, out of a wrapper that it may be in."""
    if not isinstance(value, dict):
        return value
    inner = value.get("task")
    if isinstance(inner, dict) and "status" not in value:
        value = inner
    made = _with_context(_status_of(value, spelling))
    if not made.get("id"):
        id = _first(value, "taskId", "task_id")
        if id is not None:
            made["id"] = id
    artifacts, history = value.get("artifacts"), value.get("history")
    if isinstance(artifacts, list):
        made["artifacts"] = [_artifact(each, at, spelling) for at, each in enumerate(artifacts)]
    if isinstance(history, list):
        made["history"] = [_message(each, spelling) for each in history]
    return made


def _told(value: Members, in_stream: bool) -> tuple[str, Members]:
    """Return what an object is, by what it says, else by a wrapper, else by its members."""
    kind = value.get("kind")
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind], value
    if not any(name in value for name in _OWN):
        found = [name for name in _WRAPPERS if isinstance(value.get(name), dict)]
        return (_WRAPPERS[found[0]], value[found[0]]) if len(found) == 1 else ("", value)
    if isinstance(value.get("artifact"), dict):
        return "artifactUpdate", value
    if "status" not in value:
        return "message", value
    is_update = in_stream and ("final" in value or "id" not in value)
    return ("statusUpdate" if is_update else "task"), value


def _status_of(value: Members, spelling: Spelling) -> Members:
    """Return an object with its status in the form that is due."""
    made, status = dict(value), value.get("status")
    if isinstance(status, str):
        status = {"state": status}
    if not isinstance(status, dict):
        return made
    status = dict(status)
    state = status.get("state")
    if isinstance(state, str) and state in spelling.states:
        status["state"] = spelling.states[state]
    if isinstance(status.get("message"), dict):
        status["message"] = _message(status["message"], spelling)
    made["status"] = status
    return made


def _artifact_update(value: Members, spelling: Spelling) -> Members:
    made, artifact = dict(value), value.get("artifact")
    if isinstance(artifact, dict):
        made["artifact"] = _artifact(artifact, 0, spelling)
        # The first texts had what is said of a chunk within the chunk.
        for name, alias in (("append", "append"), ("lastChunk", "last_chunk")):
            said = _first(artifact, name, alias)
            if said is not None and name not in value and alias not in value:
                made[name] = said
    return made


def _artifact(value: Any, place: int, spelling: Spelling) -> Any:
    """Return an artifact; the id of one that has an ``index``, or nothing, is its number."""
    if not isinstance(value, dict):
        return value
    made = dict(value)
    if not _first(value, "artifactId", "artifact_id"):
        index = value.get("index")
        is_number = isinstance(index, int) and not isinstance(index, bool)
        made.pop("artifact_id", None)
        made["artifactId"] = str(index if is_number else place)
    return _with_parts(made, spelling)


def _message(value: Any, spelling: Spelling) -> Any:
    if not isinstance(value, dict):
        return value
    made, role = dict(value), value.get("role")
    if not _first(value, "messageId", "message_id"):
        made.pop("message_id", None)
        made["messageId"] = uuid4().hex
    if role is None or (isinstance(role, str) and role in spelling.roles):
        made["role"] = spelling.roles.get(role or "", spelling.agent)
    return _with_parts(_with_context(made), spelling)


def _with_parts(value: Members, spelling: Spelling) -> Members:
    parts = value.get("parts")
    if isinstance(parts, list):
        value["parts"] = [spelling.part(p) if isinstance(p, dict) else p for p in parts]
    return value


def _with_context(value: Members) -> Members:
    """Return an object whose context may be a session, as it was in the first texts."""
    session = value.get("sessionId")
    if session and not _first(value, "contextId", "context_id"):
        value = {name: item for name, item in value.items() if name != "context_id"}
        value["contextId"] = session
    return value


def _first(members: Mapping[str, Any], *names: str) -> Any:
    """Return the first member of these names that is there and not empty."""
    return next((members[name] for name in names if members.get(name) not in (None, "")), None)
