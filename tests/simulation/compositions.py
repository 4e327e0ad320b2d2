"""Compositions in a simulation: a sequence and a parallel, of agents that run programs and ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.compose import parallel, sequence
from parley.engine.turn.attempt import CALL_PREFIX, RemoteCall
from parley.model.struct import decode
from tests.simulation.programs import Programs

if TYPE_CHECKING:
    from tests.simulation.checks import Kept
    from tests.simulation.world import World

CHAIN, CROWD, WORKER, CLOSER = "chain", "crowd", "worker", "closer"

PLACES = [("", "programs")] * 6 + [("/chain", CHAIN), ("/crowd", CROWD)]
"""Paths and keys of agents, for a caller's random choice: most callers use no composition."""

PARTS = (WORKER, CLOSER)
"""The agents that only compositions call."""


def agents_of(programs: Programs) -> dict[str, Agent]:
    """Return the agents of one replica, by their paths."""
    worker, closer = programs.agent("Worker"), Agent("Closer", **programs.options)
    closer.skill(replies="task")(close)
    options: dict[str, Any] = programs.options
    return {
        "": programs.agent(),
        "/chain": sequence(worker, closer, name="Chain", **options),
        "/crowd": parallel(worker, closer, name="Crowd", failures="partial", **options),
    }


async def close(turn: Turn) -> str:
    """Complete a message, after a question or a sleep, depending on the text's length."""
    match len(turn.text) % 4:
        case 1:
            return f"closed after {(await turn.ask('close it?')).message_id}"
        case 2:
            await turn.sleep(0.7)
        case 3:
            return f"closed after {await turn.step('closing', _step)}"
    return "closed"


async def _step() -> str:
    return "a step"


def check(world: World, logs: Mapping[str, Any], tasks: Mapping[str, Kept]) -> None:
    """Check the rules of compositions when no work is left.

    Exactly one call starts each task of a part; the task has ended if the composition has.
    """
    begun: dict[str, str] = {}
    for task_id, log in logs.items():
        if log.head.scope.agent not in (CHAIN, CROWD):
            continue
        calls = _calls(tasks[task_id])
        for part_task in {call.task_id for call in calls.values() if call.task_id}:
            if part_task in begun:
                _violated(world, part_task, "was begun by two compositions")
            begun[part_task] = task_id
        for name, call in calls.items():
            part = logs.get(call.task_id)
            if part is None or part.head.ended_at is not None or log.head.ended_at is None:
                continue
            if not _was_said(world, task_id):
                _violated(world, call.task_id, f"is left behind by the call {name!r}")
    for task_id, log in logs.items():
        if log.head.scope.agent in PARTS and task_id not in begun:
            _check_lost(world, logs, tasks, task_id)


def _was_said(world: World, task_id: str) -> bool:
    """Whether the server's log reports a failed cancellation: the database was down for long."""
    said = [str(what[1]) for _, _, what in world.seen if what[0] == "log"]
    return any(
        task_id in line and ("is not canceled" in line or "did not confirm" in line)
        for line in said
    )


def _check_lost(
    world: World, logs: Mapping[str, Any], tasks: Mapping[str, Kept], task_id: str
) -> None:
    """A task without a call may only belong to a composition that was ended in the meantime."""
    first = tasks[task_id].snapshots[0][1].history[0].message_id
    for log in logs.values():
        if log.head.scope.agent not in (CHAIN, CROWD):
            continue
        for call in _calls(tasks[log.head.task_id]).values():
            sent = call.request
            if sent is not None and sent.message.message_id == first:
                return
    if logs[task_id].head.ended_at is None:
        _violated(world, task_id, "was begun by no call, and waits for ever")


def _calls(kept: Kept) -> dict[str, RemoteCall]:
    found = {}
    for record in kept.records:
        key = getattr(record.event, "key", "")
        if key.startswith(CALL_PREFIX):
            found[key] = decode(record.event.value, RemoteCall)  # type: ignore[union-attr]
    return found


def _violated(world: World, task_id: str, *what: object) -> None:
    world.violated("C1", world.name("t", task_id), *what)
