"""The states of two tasks that ran in one thread at the same time, as one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.graph import END
from langgraph.types import Overwrite, StateUpdate

from parley.integrations.conversations import merged_value


def last_update(
    graph: Any, now: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[list[StateUpdate]]:
    """Return the updates that make of a thread's state what it is with the changes of a task.

    ``now`` is the state of the thread, ``before`` and ``after`` that of the task. After it nothing
    of the graph is to run.
    """
    values: dict[str, Any] = {}
    for name, value in after.items():
        if name in before and _same(value, before[name]):
            continue
        channel = graph.channels.get(name)
        if name in now:
            value = _merged(channel, now[name], before.get(name), value)
        reduces = hasattr(channel, "operator") or type(channel).__name__ == "DeltaChannel"
        values[name] = Overwrite(value) if reduces else value
    return [[StateUpdate(values, _quiet_node(graph))], [StateUpdate(None, END)]]


def _merged(channel: Any, now: Any, before: Any, after: Any) -> Any:
    if _are_messages(now) and _are_messages(after):
        return _merged_messages(now, before or [], after)
    sums = getattr(channel, "operator", None) is operator.add
    if sums and isinstance(after, int | float) and isinstance(now, int | float):
        return now + after - (before or 0)
    return merged_value(now, before, after)


def _merged_messages(now: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    """Return messages without those that the task removed, with those that it changed or added."""
    then, newest = ({each.id: each for each in some} for some in (before, after))
    known = {each.id for each in now}
    changed = {id: each for id, each in newest.items() if each != then.get(id)}
    kept = [changed.get(each.id, each) for each in now if each.id not in then or each.id in newest]
    return [*kept, *(each for each in after if each.id in changed and each.id not in known)]


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # arrays compare their members
        return one is other


def _quiet_node(graph: Any) -> str:
    """Return a node after which nothing is decided, if there is one."""
    names = list(graph.builder.nodes)
    quiet = [each for each in names if not graph.builder.branches.get(each)]
    return str((quiet or names)[0])
