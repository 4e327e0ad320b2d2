"""A message for which there is no room now: its task is written down, and nobody works on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parley.engine.replies.reply_handle import Named, ReplyHandle
from parley.engine.turn.attempt import Request
from parley.engine.turn.replay import begun_by, opening
from parley.model.uuid7 import new_id
from parley.store.task_store import Append, DuplicateReceipt, PushRecord, Receipt, Scope, StoreError

if TYPE_CHECKING:
    from parley.engine.executor import AgentExecutor

log = logging.getLogger("parley.agent")


def enqueue(
    executor: AgentExecutor,
    request: Request,
    scope: Scope,
    context_id: str,
    receipts: Sequence[Receipt],
    push: PushRecord | None,
) -> ReplyHandle:
    """Write down the task of a message for whoever adopts it; the log will tell what comes of it.

    Raises ``StoreError``.
    """
    at = executor.store.now()
    task_id = new_id(at)
    skills = len(executor.skills)
    append = Append(
        task_id=task_id,
        events=opening(request, task_id, context_id, skills=skills, at=at, in_line=True),
        expected_seq=0,
        turn=1,
        scope=scope,
        context_id=context_id,
        turn_open=True,
        release=True,
        place=executor.line.place_for(scope),
        receipts=begun_by(receipts, task_id),
        pushes=(push,) if push is not None else (),
    )
    ticket = ReplyHandle(Named(task_id))
    ticket.turn = 1

    def written(done: asyncio.Future[int]) -> None:
        executor.line.joining -= 1
        error = StoreError("the append was given up") if done.cancelled() else done.exception()
        if error is None:
            if push is not None:
                executor.push.watch(task_id, scope)
            executor.joined(task_id)
            ticket.mark_logged()
            ticket.hand_over(executor.elsewhere)
        elif isinstance(error, DuplicateReceipt):
            ticket.repeat()
        else:
            log.error("a task could not be put in line: %s", error)
            if push is not None:
                executor.push.watch(task_id, scope)  # should it be in the log all the same
            ticket.refuse(executor.unavailable(StoreError(str(error))))

    appended = executor.keep_going(asyncio.ensure_future(executor.store.append(append)))
    executor.line.joining += 1
    appended.add_done_callback(written)
    return ticket
