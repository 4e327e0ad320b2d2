"""``receiver``: makes a receiver of push notifications, and refuses what cannot be one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from parley.push.receiving.handling import AgentOpener, Handler, NotificationHandling, TaskSource
from parley.push.receiving.limits import DEFAULT_LIMITS, ReceiverLimits
from parley.push.receiving.receiver import Receiver
from parley.push.receiving.request import NotificationRefused
from parley.push.receiving.verification import VerifyAll, WebhookVerification, checked_verification
from parley.store.inbox import inbox_of
from parley.store.inbox.inbox import Inbox


def receiver(
    handler: Handler,
    *,
    verify: WebhookVerification | Sequence[WebhookVerification] | Literal[False],
    agent: AgentOpener | TaskSource | None = None,
    inbox: str | Inbox = "memory:",
    acknowledge: Literal["before", "after"] = "before",
    on_refused: Callable[[NotificationRefused], None] | None = None,
    limits: ReceiverLimits = DEFAULT_LIMITS,
) -> Receiver:
    """Return a receiver of push notifications that calls ``handler`` for each.

    ``handler`` is an ``async def`` or, in a thread, a plain function of a ``PushNotification``.
    ``verify`` is how senders prove who they are; a list must be proved altogether. ``verify=False``
    takes notifications from everyone: for tests, or behind something that verifies.

    ``agent`` is what ``await notification.task()`` asks: a connected agent, or a function that
    connects, such as ``lambda: parley.connect(url, bearer=...)``, called when first needed.

    ``inbox`` remembers what was handled: ``memory:``, ``sqlite:///inbox.db``, ``redis://...`` or
    ``postgresql://...``; replicas of a receiver share one.

    ``acknowledge="before"`` answers 202 when a notification is queued: a process that is killed
    loses its queue. ``"after"`` answers when the handler has returned, and 500 if it raised, so the
    sender comes again: each notification is handled at least once.

    Raises ``TypeError`` and ``ValueError``.
    """
    _check_handler(handler)
    if acknowledge not in ("before", "after"):
        raise ValueError(f'acknowledge is "before" or "after", not {acknowledge!r}')
    verification: WebhookVerification | None
    if verify is False:
        verification = None
    elif isinstance(verify, list | tuple):
        verification = VerifyAll(*verify)
    else:
        verification = checked_verification(verify)
    handling = NotificationHandling(
        handler,
        inbox=inbox_of(inbox) if isinstance(inbox, str) else inbox,
        open_agent=_opener(agent),
        acknowledges_first=acknowledge == "before",
        limits=limits,
    )
    return Receiver(handling, verification=verification, on_refused=on_refused, limits=limits)


def _check_handler(handler: Any) -> None:
    if not callable(handler):
        raise TypeError(f"a receiver calls a function of a notification, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError("a handler returns when it is done; it yields nothing")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise TypeError("a handler takes one argument, the notification") from None
    except ValueError:  # a builtin without a signature
        pass


def _opener(agent: Any) -> AgentOpener | None:
    if agent is None:
        return None
    if callable(getattr(agent, "get", None)):

        @asynccontextmanager
        async def opened() -> AsyncGenerator[TaskSource]:
            yield agent

        return opened
    if not callable(agent):
        raise TypeError(
            "agent= is a function that connects, agent=lambda: parley.connect(url, ...), or a "
            f"connected agent, not {agent!r}"
        )
    opener: AgentOpener = agent
    return opener
