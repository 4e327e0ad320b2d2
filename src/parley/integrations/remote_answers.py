"""The answer of a remote agent in the place of a model or of a framework's agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from parley.agent.remote.callees import Callee
from parley.host.connecting import connect
from parley.llm.current_turn import current_turn
from parley.model.parts import Message
from parley.model.tasks import Task, TaskArtifactUpdateEvent


async def answer_of(
    agent: Callee,
    options: Mapping[str, Any],
    said: str,
    *,
    key: str = "",
    task_id: str | None = None,
) -> AsyncGenerator[str | Task | Message]:
    """Yield the text of an answer as it comes, and at last the answer.

    Within a turn the message is sent once under its ``key``, questions reach the caller, and the
    agent remembers what was said in the turn's context. Only the answer is yielded then.
    ``task_id`` is for a message outside of a turn. ``options`` are those of ``parley.connect``.
    """
    turn = current_turn()
    if turn is not None:
        async with turn.connect(agent, **options) as bound:
            yield await bound.send(
                said, key=key or None, context_key="", pass_questions=True, progress=True
            )
        return
    direct: Message | None = None
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        async with remote.stream(said, task_id=task_id) as events:
            async for event in events:
                if isinstance(event, Message):
                    direct = event
                elif isinstance(event, TaskArtifactUpdateEvent):
                    yield "".join(part.text or "" for part in event.artifact.parts)
        yield direct if direct is not None else await remote.get(events.task_id)
