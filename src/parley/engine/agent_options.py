"""The grouped options of an agent (``parley.Agent``), and the rules that bindings add."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec.structs import force_setattr

from parley.engine.skill import strings_of
from parley.model.cards import AgentCard, AgentProvider
from parley.model.operations import PushEvents
from parley.security.limits.declaration import Limit

if TYPE_CHECKING:
    from parley.engine.replies import ReplyHandle
    from parley.security.authorization import Policy
    from parley.security.disclosure import Listed
    from parley.security.owner import Owner
    from parley.security.schemes.scheme import Scheme, Security


Changes = AgentCard | Mapping[str, Any]
"""A whole card, or its differences from the public card: fields by their Python names."""

ExtendedCard = Changes | Callable[..., Changes | Awaitable[Changes | None] | None]
"""The card for all callers, or a function of the caller (and the public card)."""


class WorkGate(Protocol):
    """A rule that rejects new work of an agent, such as a maintenance window."""

    def check(self, skill: str) -> None:
        """Raise ``A2AError`` if a message to a skill must be rejected now.

        Called twice: with an empty ``skill`` before the skill is known, and with the skill right
        before the message is accepted.
        """
        ...

    def hold(self, skill: str, handle: ReplyHandle) -> None:
        """Count a message that was admitted, until its handle is settled."""
        ...


class AgentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of an agent for all bindings, declared in the settings of one binding.

    Callers need the ``permissions``, and an identity if ``needs_identity`` is set. ``limits`` are
    added to the agent's. ``gates`` makes the rules that reject new work, given the store's clock
    (ms). ``agent_type`` is the type of the agent in catalogs.
    """

    permissions: tuple[str, ...] = ()
    needs_identity: bool = False
    limits: tuple[Limit, ...] = ()
    gates: Callable[[Callable[[], int]], tuple[WorkGate, ...]] | None = None
    agent_type: str = ""


NO_RULES = AgentRules()


class BindingSettings(Protocol):
    """An author's settings for an added binding, such as ``EnvelopeSettings``."""

    def check(self) -> None:
        """Raise ``TypeError`` or ``ValueError`` for contradictory settings."""
        ...

    def check_skills(self, skills: Collection[str]) -> None:
        """Raise ``ValueError`` for settings of a skill that the agent does not have."""
        ...

    @property
    def rules(self) -> AgentRules:
        """The rules that apply to all bindings."""
        ...


def checked_settings(given: BindingSettings | bool) -> BindingSettings | bool:
    """Return the value of ``CardDetails(envelope=...)``. Raises ``TypeError`` and
    ``ValueError``."""
    if not isinstance(given, bool):
        if not callable(getattr(given, "check_skills", None)):
            raise TypeError(
                "envelope is True, False, or parley.EnvelopeSettings(...), not "
                f"{type(given).__name__} {given!r:.100}"
            )
        given.check()
    return given


class CardDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an agent's card other than name, description, version, skills and security.

    ``streaming`` lets callers stream events, ``push_notifications`` lets them register webhooks.
    ``default_extensions`` chooses among the extensions that every agent has: all of them, none
    (``False``), or a list of URIs; the others are not on the card and not active. ``extended_card``
    is a card, a mapping of its differences from the public card, or a function of the caller that
    returns either (see ``Agent.extended_card``). ``listed_interfaces`` limits who sees an address
    on the card, by binding, or by binding and version (``{"GRPC": "extended", "JSONRPC 0.3":
    False}``), as ``listed`` does for skills; it hides an address, but does not close it.
    ``envelope`` has the agent's settings for the envelope protocol; ``False`` turns the protocol
    off (``docs/guides/envelope/operate.md``).
    """

    provider: AgentProvider | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    streaming: bool = True
    push_notifications: bool = True
    default_extensions: bool | Iterable[str] = True
    extended_card: ExtendedCard | None = None
    listed_interfaces: Mapping[str, Listed] | None = None
    envelope: BindingSettings | bool = True


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of an agent's callers, in addition to ``security``.

    ``policy`` is a function of an ``Access`` that returns whether it is allowed; a plain ``def``
    runs in a thread. ``operations`` replaces ``security`` for some operations, by name
    (``"CancelTask"``); the entry of ``"SendMessage"`` also applies to ``"SendStreamingMessage"``,
    unless that has its own. ``"UploadFile"`` and ``"DownloadFile"`` are requests for files; methods
    of extensions have their own names. ``owner`` decides who owns tasks, contexts, webhooks, lists
    and files: each ``"caller"``, the ``"tenant"``, the callers with the same value of a claim
    (``claim("org")``), or the owner that a function of the caller names. After a change of
    ``owner`` existing tasks stay with their old owners.
    """

    policy: Policy | None = None
    operations: Mapping[str, Scheme | Security] = {}
    owner: Owner = "caller"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The data that an agent keeps, and for how long.

    ``tasks`` is the time that a task is kept after its end, ``None`` for ever. ``history`` stores
    the conversation of each context for ``turn.history()``. ``claims`` names the claims of callers
    that are stored with messages: ``turn.caller`` has only these.

    Raises ``ValueError`` for a time that is not positive, and for a claim that is a credential.
    """

    tasks: timedelta | None = timedelta(days=7)
    history: bool = False
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_span("Retention.tasks", self.tasks)
        force_setattr(self, "claims", strings_of(self.claims, "Retention.claims"))
        for name in self.claims:
            _check_claim(name)


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The execution of an agent's messages and turns. Times are in seconds or timedeltas.

    - ``direct_reply_timeout``: a function that runs longer gets a task.
    - ``blocking_timeout``: a blocking send that waits longer returns the current task.
    - ``turn_timeout``: the time after its first attempt at which a turn fails.
    - ``task_timeout``: the age at which a task fails, in any state.
    - ``input_timeout``: the time that a task waits for its caller before it is canceled.
    - ``cancel_grace``: the time that a function has to end after its cancellation.
    - ``max_running``: the limit of concurrent turns in one process.
    - ``max_queued``: the limit of queued turns in all processes together.
    - ``max_waiting_messages``: the limit of messages that wait on one task.
    - ``threads``: the number of threads for plain functions.
    - ``on_crash``: run a turn of a dead process again, or fail it.
    - ``max_attempts``: the limit of attempts at one turn.
    - ``max_hops``: the limit of agents that have called each other before this agent.
    - ``stream_until_terminal``: the stream of a message stays open when its task asks for input.
    - ``push_events``: the default events for webhooks: ``"all"``, or the ``"significant"`` ones,
      states and complete artifacts.

    Raises ``ValueError`` for a value out of range.
    """

    direct_reply_timeout: float = 1.0
    blocking_timeout: float = 300.0
    turn_timeout: timedelta | None = None
    task_timeout: timedelta | None = None
    input_timeout: timedelta | None = timedelta(days=30)
    cancel_grace: float = 5.0
    max_running: int = 1000
    max_queued: int = 10_000
    max_waiting_messages: int = 100
    threads: int = 40
    on_crash: Literal["rerun", "fail"] = "rerun"
    max_attempts: int = 5
    max_hops: int = 8
    stream_until_terminal: bool = False
    push_events: PushEvents = "all"

    def __post_init__(self) -> None:
        for name in ("direct_reply_timeout", "cancel_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of seconds, 0 or more")
        if self.blocking_timeout <= 0:
            raise ValueError("blocking_timeout is a number of seconds above 0")
        for name in ("max_attempts", "max_running", "max_waiting_messages", "max_hops", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more")
        if self.max_queued < 0:
            raise ValueError("max_queued is 0 or more")
        for name in ("turn_timeout", "task_timeout", "input_timeout"):
            _check_span(name, getattr(self, name))
        if self.on_crash not in ("rerun", "fail"):
            raise ValueError(f"on_crash is 'rerun' or 'fail', not {self.on_crash!r}")
        if self.push_events not in ("all", "significant"):
            raise ValueError(f"push_events is 'all' or 'significant', not {self.push_events!r}")


GROUPS: dict[str, type[msgspec.Struct]] = {
    "card": CardDetails,
    "rights": Rights,
    "retention": Retention,
    "execution": Execution,
}
"""The keywords of an agent that group its options."""


def _check_span(name: str, span: timedelta | None) -> None:
    if span is not None and span <= timedelta(0):
        raise ValueError(f"{name} is a positive timedelta, or None for ever")


_CREDENTIALS = frozenset(
    {
        "apikey",
        "assertion",
        "authorization",
        "clientassertion",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "passphrase",
        "passwd",
        "privatekey",
        "setcookie",
    }
)
"""Claims that are never stored, in addition to claims with names that end like a token's."""


def _check_claim(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"Retention.claims has names of claims, such as 'email', not {name!r}")
    word = re.sub(r"[^a-z]", "", re.split(r"[/:.]", name.lower())[-1])
    if word in _CREDENTIALS or word.endswith(("token", "tokens", "password", "secret")):
        raise ValueError(
            f"Retention.claims names {name!r}, which is a credential; kept claims are written to "
            "the log and its exports: name claims that identify the caller"
        )
