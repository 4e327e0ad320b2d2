"""The executor, as task runners see it. ``engine/turn`` does not import the executor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from parley.engine.options import Options
from parley.engine.replies.remote_replies import RemoteReplies
from parley.engine.replies.reply_handle import ReplyHandle
from parley.engine.skill import Skill
from parley.engine.turn.attempt import Attempt
from parley.engine.turn.deadlines import Deadlines
from parley.engine.turn.output_filter import OutputFilters
from parley.model.errors import A2AError
from parley.store.bus.subscriptions import LocalHints
from parley.store.task_store import StoreError, TaskStore

if TYPE_CHECKING:
    from parley.push.dispatcher import PushDispatcher

R = TypeVar("R", contravariant=True)


class RunnerOwner(Protocol[R]):
    """Owns the runners ``R`` of one agent. ``AgentExecutor`` implements it.

    ``invoke`` calls the author's function. ``arriving`` has the handles of messages that are being
    appended to a log. ``may_have_orphans``: the replica may hold tasks that no runner runs.
    """

    store: TaskStore
    hints: LocalHints
    options: Options
    skills: Mapping[str, Skill]
    default_skill: Skill
    runs_turns: bool
    invoke: Callable[[Attempt], Awaitable[object]]
    push: PushDispatcher
    deadlines: Deadlines
    output_filters: OutputFilters
    remote_replies: RemoteReplies
    arriving: dict[str, ReplyHandle]
    may_have_orphans: bool

    def in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call a plain function in one of the agent's threads."""
        ...

    def register(self, runner: R) -> None:
        """Make a runner known by its task."""
        ...

    def remove(self, runner: R) -> None:
        """Forget a runner that has ended."""
        ...

    def replace(self, runner: R) -> None:
        """Start another runner for the task of one whose function does not end."""
        ...

    def notify_work(self) -> None:
        """Wake the claimers of this agent, here and on other replicas."""
        ...

    def unavailable(self, error: StoreError) -> A2AError:
        """Return a caller's error for a store that failed."""
        ...
