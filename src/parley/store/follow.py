"""Follows a task's log. All streams read their events with this module."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from parley.model.tasks import Task, TaskStatusUpdateEvent
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import LoggedEvent
from parley.store.protocols.task_log import PAGE_BYTES
from parley.store.task_store import TaskStore

PAGE = 256


class Gap(Exception):
    """Retention removed events after the requested position. ``first`` is the first remaining
    one."""

    def __init__(self, task_id: str, after: int, first: int) -> None:
        self.first = first
        super().__init__(
            f"task {task_id}: the events after {after} are gone, the log begins with {first}"
        )


class TaskGone(Exception):
    """The task does not exist (any more)."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id}, or it was removed")


async def follow(
    store: TaskStore,
    hints: LocalHints,
    task_id: str,
    after: int,
    *,
    poll: float | None = None,
    live: Subscription | None = None,
) -> AsyncGenerator[Sequence[LoggedEvent], None]:
    """Yield the public events after number ``after``, in order, without gap or repetition.

    Ends after the event that ends the task, at once when that is not after ``after``. Events are
    taken from hints as they are committed, and read from the store otherwise: at the beginning, and
    when a hint shows that there are more. A lost hint only costs time: ``BusPoller`` polls for all
    readers of a process. ``poll`` is for use without a poller: the interval of reads in seconds.
    Holds a bounded number of events however slowly it is read, and never blocks a writer.

    ``live`` is a subscription from before event ``after`` + 1 could be committed: it saves the
    first read of the store. Close the generator (``contextlib.aclosing``) when leaving it early.

    Raises ``TaskGone``, ``Gap`` when retention removed the requested events, ``ValueError`` for a
    position that the log has not reached, and the errors of the store.
    """
    position = after
    must_read = live is None
    with live if live is not None else hints.subscribe(task_id) as subscription:
        while True:
            if must_read:
                # Subscribed before the read: an event that is committed in between arrives twice
                # and is dropped by its number; in the other order it would be missed.
                page = await store.events(task_id, max(position - 1, 0), PAGE)
                await _check_position(store, task_id, position, page)
                must_read, is_over = _is_full(page), bool(page) and _ends(page[-1])
                events = _after(page, position)
                if must_read and not events:  # the event at the position fills a whole page
                    events = await store.events(task_id, position, PAGE)
                    must_read = _is_full(events)
                    is_over = _ends(events[-1]) if events else is_over
                subscription.seen = max(position, events[-1].seq if events else 0)
            elif await subscription.wait(poll):
                held, must_read = subscription.take()
                events = _after(held, position)
                if events and events[0].seq != position + 1:
                    events, must_read = (), True
                is_over = bool(events) and _ends(events[-1])
            else:
                must_read = True
                continue
            if events:
                position = events[-1].seq
                yield events
            if is_over:
                return


def _after(events: Sequence[LoggedEvent], position: int) -> Sequence[LoggedEvent]:
    """Return the ``events`` after ``position``, given that their numbers rise by one."""
    seen = position + 1 - events[0].seq if events else 0
    return events[seen:] if seen > 0 else events


def _is_full(page: Sequence[LoggedEvent]) -> bool:
    """Return whether there may be more events after ``page``."""
    return len(page) == PAGE or sum([len(event.payload) for event in page]) >= PAGE_BYTES


def _ends(event: LoggedEvent) -> bool:
    """Return whether ``event`` is the last of its log."""
    public = event.event
    return isinstance(public, Task | TaskStatusUpdateEvent) and public.status.state.is_terminal


async def _check_position(
    store: TaskStore, task_id: str, position: int, page: Sequence[LoggedEvent]
) -> None:
    """Check that ``page``, read from the event at ``position`` on, begins with it."""
    if not page:
        if position == 0 or not await store.positions([task_id]):
            raise TaskGone(task_id)
        raise ValueError(f"task {task_id} has not reached event {position}")
    if page[0].seq > max(position, 1):
        raise Gap(task_id, position, page[0].seq)
