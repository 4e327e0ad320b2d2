"""The calls of other agents in a task's log: the message, the remote task, the answer.

``agent.remote`` makes the calls. When a task ends, ``calls_to_cancel`` returns those to cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.encoding import decode
from parley.model.parts import Message
from parley.model.requests import SendMessageRequest
from parley.model.struct import A2AStruct
from parley.model.tasks import Task
from parley.store.events import StoredCaller

PREFIX = "call:"
"""The prefix of the keys of these records, among those of steps and questions."""


class RemoteCall(A2AStruct, frozen=True, kw_only=True):
    """One message to another agent, as the log has it.

    ``address`` is the agent's, without secrets; ``card`` its card, if it was given without one.
    ``request`` is what was sent, kept until the remote task is known. ``task_id`` is the remote
    task. ``answered`` is set with the answer: a direct ``message``, or the ``task`` (left out if it
    is large). ``ended``: the remote task needs nothing more. ``cancel``: it is canceled with ours.
    ``caller`` and ``tenant`` are those of a call of an agent of this process.
    """

    address: str
    card: dict[str, Any] | None = None
    request: SendMessageRequest | None = None
    task_id: str = ""
    context_id: str = ""
    answered: bool = False
    message: Message | None = None
    task: Task | None = None
    ended: bool = False
    cancel: bool = True
    caller: StoredCaller | None = None
    tenant: str = ""


def calls_to_cancel(results: Mapping[str, msgspec.Raw]) -> dict[str, RemoteCall]:
    """Return the calls, by their names, that may still run and end with their task.

    Of several messages to one remote task the last decides.
    """
    last: dict[tuple[str, str], tuple[str, RemoteCall]] = {}
    for key, value in results.items():
        if key.startswith(PREFIX):
            name, call = key.removeprefix(PREFIX), decode(value, RemoteCall)
            last[call.address, call.task_id or name] = (name, call)
    return {name: call for name, call in last.values() if call.cancel and not call.ended}
