"""The executor, as task runners see it. ``engine/turn`` does not import the executor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from parley.engine.options import Options
from parley.engine.replies.remote_replies import RemoteReplies
from parley.engine.replies.reply_handle import ReplyHandle
from parley.engine.skill import Skill
from parley.engine.turn.attempt import Attempt
from parley.engine.turn.deadlines import Deadlines
from parley.engine.turn.measured_writer import TurnMeter
from parley.engine.turn.output_filter import OutputFilters
from parley.engine.turn.remote_calls import RemoteCall
from parley.model.errors import A2AError
from parley.push.dispatcher import PushDispatcher
from parley.store.bus.subscriptions import LocalHints
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

R = TypeVar("R", contravariant=True)


class RunnerOwner(Protocol[R]):
    """Owns the runners ``R`` of one agent. ``AgentExecutor`` implements it.

    ``invoke`` calls the author's function, ``cancel_calls`` cancels what a task began at other
    agents (it raises nothing and takes a bounded time), ``in_thread`` calls a plain function in one
    of the agent's threads, and ``notify_work`` wakes the claimers, here and on other replicas.
    ``arriving`` has the handles of messages that are being appended to a log.
    ``meter`` measures what turns write, if anything asks for it.
    ``may_have_orphans``: the replica may hold tasks that no runner runs.
    """

    store: TaskStore
    hints: LocalHints
    options: Options
    skills: Mapping[str, Skill]
    default_skill: Skill
    runs_turns: bool
    invoke: Callable[[Attempt], Awaitable[object]]
    cancel_calls: Callable[[str, Mapping[str, RemoteCall]], Awaitable[None]]
    in_thread: Callable[..., Awaitable[Any]]
    notify_work: Callable[[], None]
    push: PushDispatcher
    deadlines: Deadlines
    output_filters: OutputFilters
    remote_replies: RemoteReplies
    arriving: dict[str, ReplyHandle]
    may_have_orphans: bool
    meter: TurnMeter | None

    def register(self, runner: R) -> None:
        """Make a runner known by its task."""
        ...

    def remove(self, runner: R) -> None:
        """Forget a runner that has ended."""
        ...

    def replace(self, runner: R) -> None:
        """Start another runner for the task of one whose function does not end."""
        ...

    def unavailable(self, error: StoreError) -> A2AError:
        """Return a caller's error for a store that failed."""
        ...
