"""The stored content of a context: conversation, state, values of tasks; ids of threads.

Several tasks may change the conversation and the state concurrently. A task's additions are merged
in one update after its run; the additions of other tasks are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from parley.agent.turn import Turn
from parley.llm.model import Json
from parley.model.struct import valid_text

MAX_BYTES = 1_000_000
"""The size limit of a conversation or state in a context, in bytes of JSON."""

MAX_WRITERS = 20
"""The number of the newest writers of a state recorded, so that no task writes twice."""

HEAD = "before:"
"""The prefix of the name of an entry with a memory's summary of earlier tasks."""

Messages = list[Any]
"""Messages of a framework, as JSON."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


class ContextConversation:
    """The conversation of a context: the messages of its tasks, in the order in which they ended.

    It keeps at most ``max_messages`` and ``max_bytes`` of JSON. The oldest tasks are dropped first.
    If the newest task alone is larger, ``shorten`` returns its messages without large content, such
    as files; if that is not enough, only that task is dropped, with a log entry. ``first`` are
    messages that begin every conversation; they are not stored. With ``keeps_newest`` the newest
    task is kept, however large.
    """

    def __init__(
        self,
        turn: Turn,
        key: str,
        *,
        max_messages: int | None = None,
        max_bytes: int = MAX_BYTES,
        shorten: Callable[[Messages], Messages] | None = None,
        first: Messages | None = None,
        keeps_newest: bool = False,
    ) -> None:
        self._found: list[str] = []
        self._earlier: Messages = []
        self._is_whole = True
        self._turn = turn
        self._key = key
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._shorten = shorten
        self._first = first or []
        self._keeps_newest = keeps_newest

    async def earlier(self, *, step: str = "") -> Messages:
        """Return the messages of the tasks that have ended, the oldest first.

        With ``step`` they are a step of the task: each attempt at the task finds the same messages.
        """
        if step:
            entries = await self._turn.step(step, self._turn.recall, self._key, [])
        else:
            entries = await self._turn.recall(self._key, [])
        others = [each for each in entries if each["task"] != self._turn.task_id]
        self._found = [each["task"] for each in others]
        self._earlier = [] if _has_head(others) else list(self._first)
        self._earlier += [message for each in others for message in each["messages"]]
        return list(self._earlier)

    # -- for frameworks whose memory has all messages ---------------------------------------------

    def mark(self, messages: Messages) -> Json:
        """Return the checkpoint data for ``resume``, in addition to the messages of a memory."""
        instead, own = self._split(messages)
        return {"own": len(own), "whole": instead is None, "found": self._found}

    def resume(self, mark: Mapping[str, Any], messages: Messages) -> None:
        """Continue from a checkpoint whose memory has these messages."""
        self._found, self._is_whole = mark["found"], mark["whole"]
        self._earlier = messages[: len(messages) - mark["own"]]

    async def finish(self, messages: Messages) -> None:
        """Add the new messages of a memory with these messages."""
        instead, own = self._split(messages)
        await self.add(own, instead=instead)

    def _split(self, messages: Messages) -> tuple[Messages | None, Messages]:
        instead, own = added_to(self._earlier, messages)
        return self._earlier if instead is None and not self._is_whole else instead, own

    # -- adding --------------------------------------------------------------------------------

    async def add(self, messages: Iterable[Any], *, instead: Messages | None = None) -> None:
        """Add the messages of this task; a further attempt at the task replaces them.

        ``instead`` is for a memory that has dropped or summarized the earlier messages: it replaces
        the result of ``earlier``.

        Raises ``TypeError`` for messages that are not JSON.
        """
        task_id = self._turn.task_id
        own = _plain(list(messages))
        entry = {"task": task_id, "messages": self._short(own)}
        head = None if instead is None else _plain(instead)

        def added(entries: list[Any]) -> list[Any]:
            others = [each for each in entries if each["task"] != task_id]
            meanwhile = [each for each in others if each["task"] not in self._found]
            is_new = bool(self._first) and not _has_head(others)
            if head is not None and (is_new or len(meanwhile) < len(others)):
                others = [{"task": f"{HEAD}{task_id}", "messages": head}, *meanwhile]
            return self._bounded([*others, entry])

        await self._turn.update(self._key, added, [])

    def _short(self, messages: Messages) -> Messages:
        if self._keeps_newest:
            return messages
        if len(msgspec.json.encode(messages)) > self._max_bytes and self._shorten is not None:
            messages = self._shorten(messages)
        if len(msgspec.json.encode(messages)) <= self._max_bytes:
            return messages
        self._turn.log.warning(
            "the messages of this task exceed the %s bytes that a conversation may keep",
            f"{self._max_bytes:,}",
        )
        return []

    def _bounded(self, entries: list[Any]) -> list[Any]:
        if self._max_messages == 0:
            return []
        kept = [each for each in entries if each["messages"]]
        sizes = [len(msgspec.json.encode(each)) for each in kept]
        most = self._max_messages
        while len(kept) > 1 and (
            sum(sizes) > self._max_bytes
            or (most is not None and sum(len(each["messages"]) for each in kept) > most)
        ):
            del kept[0], sizes[0]
        return kept


def _plain(value: Any) -> Any:
    """Return a value in its JSON form, with valid text: a model's stream may split an emoji."""
    return msgspec.json.decode(msgspec.json.encode(valid_text(value)))


def _has_head(entries: Messages) -> bool:
    return any(each["task"].startswith(HEAD) for each in entries)


def added_to(earlier: Messages, messages: Messages) -> tuple[Messages | None, Messages]:
    """Return the changed earlier messages of a run, and its new messages.

    ``earlier`` are the messages that it had found; the memory now has ``messages``. The first value
    is the argument ``instead`` of ``ContextConversation.add``: ``None`` if all earlier messages
    remain.
    """
    if messages[: len(earlier)] == earlier:
        return None, messages[len(earlier) :]
    then, now = ([_ENCODER.encode(each) for each in some] for some in (earlier, messages))
    places: dict[bytes, list[int]] = {}
    for at, each in enumerate(now):
        places.setdefault(each, []).append(at)
    for begin, each in enumerate(then):  # a memory drops, or summarizes, the oldest first
        for at in places.get(each, ()):
            own = at + len(then) - begin
            if now[at:own] == then[begin:]:
                return messages[:own], messages[own:]
    return [], messages


def replaced(value: Any, replace: Callable[[Json], Any | None]) -> Any:
    """Return JSON in which ``replace`` may replace objects; ``None`` keeps an object."""
    if isinstance(value, list):
        return [replaced(each, replace) for each in value]
    if isinstance(value, dict):
        found = replace(value)
        if found is not None:
            return found
        return {name: replaced(each, replace) for name, each in value.items()}
    return value


class ContextState:
    """A JSON object shared by the tasks of a context: each task writes only its own changes.

    It keeps at most ``max_bytes`` of JSON; a larger state is not stored, with a log entry.
    ``shorten`` removes old or large values from a state before it is stored.
    """

    def __init__(
        self,
        turn: Turn,
        key: str,
        *,
        max_bytes: int = MAX_BYTES,
        shorten: Callable[[Json], Json] | None = None,
    ) -> None:
        self._shorten = shorten
        self._turn = turn
        self._key = key
        self._max_bytes = max_bytes

    async def read(self, *, step: str = "") -> Json:
        """Return the state; with ``step``, each attempt at the task finds the same."""
        if step:
            return await self._turn.step(step, self.read)
        kept = await self._turn.recall(self._key, {})
        state: Json = kept.get("state", {})
        return state

    async def write(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Apply the changes of a task from ``before`` to ``after``, once for each task.

        Raises ``TypeError`` for a state that is not JSON.
        """
        first, last = _plain(before), _plain(after)
        task_id = self._turn.task_id

        def changed(kept: Json) -> Json:
            now, by = kept.get("state", {}), kept.get("by", [])
            if task_id in by:
                return kept
            merged = merged_value(now, first, last)
            if self._shorten is not None:
                merged = self._shorten(merged)
            if len(msgspec.json.encode(merged)) > self._max_bytes:
                self._turn.log.warning(
                    "the state exceeds the %s bytes that a context may keep: it is not updated",
                    f"{self._max_bytes:,}",
                )
                return kept
            return {"state": merged, "by": [*by, task_id][-MAX_WRITERS:]}

        await self._turn.update(self._key, changed, {})


def merged_value(now: Any, before: Any, after: Any) -> Any:
    """Return a value with the changes from ``before`` to ``after`` applied.

    Members of objects are merged one by one; additions to a list are appended. A missing value is
    treated as empty. For other values the newest wins.
    """
    if after == before:
        return now
    if before is None and isinstance(after, dict | list):
        before = type(after)()
    if now == before:
        return after
    if isinstance(now, dict) and isinstance(before, dict) and isinstance(after, dict):
        kept = {name: value for name, value in now.items() if name not in before or name in after}
        for name, value in after.items():
            if name not in before or value != before[name]:
                known = name in kept
                kept[name] = merged_value(kept[name], before.get(name), value) if known else value
        return kept
    if isinstance(now, list) and isinstance(before, list) and isinstance(after, list):
        return [*now, *after[len(before) :]] if after[: len(before)] == before else after
    return after


CHECKPOINT_BYTES = 500_000
"""The size limit of a run's state, in bytes of JSON, for checkpoints other than questions.

A larger state is kept only at a question; a crash then repeats more.
"""


def fits_checkpoint(state: Any) -> bool:
    """Return whether a state is small enough for checkpoints other than questions."""
    return len(msgspec.json.encode(state)) <= CHECKPOINT_BYTES


class TaskValue:
    """A JSON value that the context keeps for one task.

    It is removed when the task ends: completed, failed, canceled or rejected, also while it waits
    and after a crash. Other tasks of the context have their own values under the same name. If it
    ``lists`` other values, it is an object with their ``keys``, and they are removed with it.
    """

    def __init__(self, turn: Turn, name: str, *, lists: bool = False) -> None:
        self._turn = turn
        self._lists = lists
        self._key = f"{name}:{turn.task_id}"

    async def read(self) -> Any:
        """Return the newest value, ``None`` without one."""
        return await self._turn.recall(self._key)

    async def write(self, value: Any) -> None:
        """Replace the value; it is durable before this returns.

        Raises ``TypeError`` for a value that is not JSON, and ``TurnOver`` after the turn's end.
        """
        await self._turn._attempt.own_value(self._key, lists=self._lists)
        await self._turn.remember(self._key, value)

    async def update(self, function: Callable[[Any], Any], default: Any = None) -> None:
        """Change the value as ``Turn.update`` does. Raises the errors of ``Turn.update`` and
        ``write``.
        """
        await self._turn._attempt.own_value(self._key, lists=self._lists)
        await self._turn.update(self._key, function, default)

    async def remove(self) -> None:
        """Remove the value before the task ends."""
        await self._turn.remember(self._key, None)


ANONYMOUS = "anonymous"
"""The user of contexts without an owner."""


def thread_id(turn: Turn) -> str:
    """Return the id under which a framework keeps the conversation of this turn's context.

    Two owners may use the same ``contextId`` for different contexts, so the id of a context with an
    owner or a tenant ends with a point and a digest of them. The rest has only letters, digits,
    ``-`` and ``_``, so no caller can name another caller's thread.
    """
    scope = turn._attempt.runner.scope
    if not scope.owner and not scope.tenant and _is_plain(turn.context_id):
        return turn.context_id
    whole = (scope.agent, scope.tenant, scope.owner, turn.context_id)
    return _digested(turn.context_id if _is_plain(turn.context_id) else "context", whole)


def user_id(turn: Turn) -> str:
    """Return the id under which a framework keeps data of the owner of this turn's context.

    Callers with shared ownership are one user. It is ``anonymous`` without an owner, and no owner
    has that id. It uses the same characters as ``thread_id``.
    """
    scope = turn._attempt.runner.scope
    if not scope.owner and not scope.tenant:
        return ANONYMOUS
    if not scope.tenant and _is_plain(scope.owner) and scope.owner != ANONYMOUS:
        return scope.owner
    return _digested("user", (scope.tenant, scope.owner))


def _digested(name: str, whole: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join(whole).encode()).hexdigest()
    return f"{name[:64]}.{digest[:32]}"


def _is_plain(text: str) -> bool:
    return bool(text) and len(text) <= 128 and text.replace("-", "").replace("_", "").isalnum()
