"""An agent as the engine knows it: its options, its skills, and its extended card (§3.1.11, §13.3).

``Agent`` describes itself; ``host/`` hands the value over.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from parley.engine.handoff import Handoffs
from parley.engine.skill import Skill, form_of
from parley.model.cards import AgentCard, AgentInterface
from parley.model.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.extensions import Extension
from parley.model.ids import log_incident
from parley.model.operations import PushEvents
from parley.model.service import Caller
from parley.model.struct import decode, encode
from parley.security.authorization import Authorization
from parley.security.disclosure import InterfaceListings
from parley.security.owner import PER_CALLER, OwnerPolicy
from parley.security.rates.limit import Limit

if TYPE_CHECKING:
    from parley.engine.replies import ReplyHandle


class WorkGate(Protocol):
    """A rule that refuses new work of an agent."""

    def check(self, skill: str) -> None:
        """Raise ``A2AError`` for a message to a skill that is refused now.

        It is asked twice: with an empty ``skill`` before the skill is known, and with it right
        before the message is taken.
        """
        ...

    def hold(self, skill: str, handle: ReplyHandle) -> None:
        """Count a message that was admitted, until its handle is settled."""
        ...


class AgentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of an agent on all bindings, as the settings of one binding declare them.

    Callers need the ``permissions``, and prove who they are if ``needs_identity``. ``limits`` join
    those of the agent. ``gates`` makes the rules that refuse new work, from the store's clock (ms).
    ``agent_type`` is the type of the agent in catalogs.
    """

    permissions: tuple[str, ...] = ()
    needs_identity: bool = False
    limits: tuple[Limit, ...] = ()
    gates: Callable[[Callable[[], int]], tuple[WorkGate, ...]] | None = None
    agent_type: str = ""


NO_RULES = AgentRules()


class BindingSettings(Protocol):
    """An author's declaration for an added binding, such as ``EnvelopeSettings``."""

    def check(self) -> None:
        """Raise ``TypeError`` or ``ValueError`` for settings that make no sense."""
        ...

    def check_skills(self, skills: Collection[str]) -> None:
        """Raise ``ValueError`` for settings of a skill that the agent does not have."""
        ...

    @property
    def rules(self) -> AgentRules:
        """The rules that hold on all bindings."""
        ...


def checked_settings(given: BindingSettings | bool) -> BindingSettings | bool:
    """Return what ``Agent(envelope=...)`` takes. Raises ``TypeError`` and ``ValueError``."""
    if not isinstance(given, bool):
        if not callable(getattr(given, "check_skills", None)):
            raise TypeError(
                "envelope is True, False, or parley.EnvelopeSettings(...), not "
                f"{type(given).__name__} {given!r:.100}"
            )
        given.check()
    return given


class AgentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The key, card, skills and options of one agent.

    ``card`` has no interfaces: a server knows them. The agent's tasks are stored under ``key``.
    ``authorization`` has the rules of what callers may do, if there are any. ``owner`` decides to
    whom tasks belong. ``limits`` hold for the agent and for its skills.
    ``transfers_files`` is false for an agent without files by reference, whatever its server keeps.
    ``declares_schemas``: the card has the schemas of typed skills. ``interfaces`` says who sees
    which addresses of the agent. ``envelope`` is its declaration in the envelope protocol, False
    if it does not speak that; the ``rules`` are what this means for all bindings. ``handoffs`` says
    whom it may hand conversations to, if anybody.
    The default skill answers messages that name no skill, unless there is a ``router``.
    """

    key: str
    card: AgentCard
    skills: Mapping[str, Skill]
    default_skill: Skill
    router: Callable[..., Any] | None
    input_modes: tuple[str, ...]
    extended_cards: ExtendedCards | None
    extensions: tuple[Extension, ...]
    options: Options
    retention: timedelta | None
    input_timeout: timedelta | None
    threads: int
    transfers_files: bool = True
    authorization: Authorization | None = None
    owner: OwnerPolicy = PER_CALLER
    declares_schemas: bool = False
    interfaces: InterfaceListings | None = None
    limits: tuple[Limit, ...] = ()
    envelope: BindingSettings | bool = True
    rules: AgentRules = NO_RULES
    handoffs: Handoffs | None = None

    def card_at(self, interfaces: tuple[AgentInterface, ...]) -> AgentCard:
        """Return the public card with the server's interfaces that all may see."""
        if self.interfaces is not None:
            interfaces = self.interfaces.public(interfaces)
        return replace(self.card, supported_interfaces=interfaces)

    @property
    def name(self) -> str:
        """The agent's name, as on its card."""
        return self.card.name

    @property
    def output_modes(self) -> tuple[str, ...]:
        """The modes of a skill that declares none."""
        return self.card.default_output_modes

    @property
    def push_notifications(self) -> bool:
        """Return whether callers may name webhooks."""
        return bool(self.card.capabilities.push_notifications)


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
"""Claims that are never stored, besides claims whose names end like a token's."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an agent's turns. Times are in seconds, unless they are timedeltas.

    - ``direct_reply_timeout``: a function that runs longer gets a task.
    - ``blocking_timeout``: a blocking send that waits longer returns the current task.
    - ``stream_until_terminal``: the stream of a message stays open when its task asks for input.
    - ``cancel_grace``: the time that a function has to end after its cancellation.
    - ``on_crash``: run a turn of a dead process again, or fail it.
    - ``max_attempts``: the limit of attempts at one turn.
    - ``max_running``: the limit of concurrent turns in one process.
    - ``max_queued``: the limit of queued turns in all processes together.
    - ``max_waiting_messages``: the limit of messages that wait on one task.
    - ``turn_timeout``: the age at which a turn fails, from its first attempt on.
    - ``task_timeout``: the age at which a task fails, in whichever state it is.
    - ``max_hops``: the limit of agents that called each other before this one is called.
    - ``keep_history``: store the conversation of each context.
    - ``keep_claims``: the names of the caller's claims that the log stores, for ``turn.caller``.
    - ``push_events``: the events for a webhook without a choice of its own.
    """

    direct_reply_timeout: float = 1.0
    blocking_timeout: float = 300.0
    stream_until_terminal: bool = False
    cancel_grace: float = 5.0
    on_crash: Literal["rerun", "fail"] = "rerun"
    max_attempts: int = 5
    max_running: int = 1000
    max_queued: int = 10_000
    max_waiting_messages: int = 100
    turn_timeout: timedelta | None = None
    task_timeout: timedelta | None = None
    max_hops: int = 8
    keep_history: bool = False
    keep_claims: tuple[str, ...] = ()
    push_events: PushEvents = "all"

    def __post_init__(self) -> None:
        for name in ("direct_reply_timeout", "cancel_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of seconds, 0 or more")
        if self.blocking_timeout <= 0:
            raise ValueError("blocking_timeout is a number of seconds above 0")
        for name in ("max_attempts", "max_running", "max_waiting_messages", "max_hops"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more")
        if self.max_queued < 0:
            raise ValueError("max_queued is 0 or more")
        for name in ("turn_timeout", "task_timeout"):
            span = getattr(self, name)
            if span is not None and span <= timedelta(0):
                raise ValueError(f"{name} is a positive timedelta, or None for ever")
        if self.on_crash not in ("rerun", "fail"):
            raise ValueError(f"on_crash is 'rerun' or 'fail', not {self.on_crash!r}")
        if self.push_events not in ("all", "significant"):
            raise ValueError(f"push_events is 'all' or 'significant', not {self.push_events!r}")
        for name in self.keep_claims:
            _check_claim(name)


def _check_claim(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"keep_claims has names of claims, such as 'email', not {name!r}")
    word = re.sub(r"[^a-z]", "", re.split(r"[/:.]", name.lower())[-1])
    if word in _CREDENTIALS or word.endswith(("token", "tokens", "password", "secret")):
        raise ValueError(
            f"keep_claims names {name!r}, which is a credential; what is kept is written to the "
            "log and its exports: name claims that say who the caller is"
        )


log = logging.getLogger("parley.engine")

Changes = AgentCard | Mapping[str, Any]
"""A whole card, or its differences from the public card: fields by their Python names."""

ExtendedCard = Changes | Callable[..., Changes | Awaitable[Changes | None] | None]
"""The card for all callers, or a function of the caller (and the public card)."""


class ExtendedCards:
    """Makes the extended card of each caller.

    A function takes nothing, the caller, or the caller and the public card. It returns ``None`` if
    there is no extended card for this caller.

    Raises ``TypeError`` and ``ValueError`` for an invalid card.
    """

    def __init__(self, source: ExtendedCard) -> None:
        self._function: Callable[..., Any] | None = None
        self._value: Changes | None = None
        if isinstance(source, AgentCard | Mapping):
            _check(source)
            self._value = source
        elif callable(source):
            self._function = source
            self._arity = _arity(source)
            self._blocks = form_of(source).in_thread
        else:
            raise TypeError(
                "an extended card is an AgentCard, a mapping of the card's fields, or a function "
                f"that returns one of them, not {source!r}"
            )

    async def of(
        self,
        card: AgentCard,
        caller: Caller,
        in_thread: Callable[..., Awaitable[Any]],
        *,
        own: AgentCard | None = None,
    ) -> AgentCard:
        """Return the extended card of a caller; ``card`` is the public one.

        Differences are applied to ``own``, the card with all skills that the caller sees.

        Raises ``ExtendedAgentCardNotConfiguredError`` if there is none for this caller.
        """
        changes: Any = self._value
        try:
            if self._function is not None:
                arguments = (caller, card)[: self._arity]
                if self._blocks:
                    changes = await in_thread(self._function, *arguments)
                else:
                    changes = self._function(*arguments)
                if inspect.isawaitable(changes):
                    changes = await changes
            if changes is not None:
                return extended(own or card, changes)
        except A2AError:
            raise
        except Exception:
            reference = log_incident(log, "making an extended card")
            words = f"the card could not be made; the server's log says why under {reference}"
            raise InternalError(words) from None
        raise ExtendedAgentCardNotConfiguredError("there is no extended card for this caller")


def extended(card: AgentCard, changes: Changes) -> AgentCard:
    """Return a card with changes. Skills are merged by id, other fields are replaced.

    Raises ``TypeError`` and ``ValueError`` for an invalid card.
    """
    if isinstance(changes, AgentCard):
        card = changes
    else:
        _check(changes)
        fields = dict(changes)
        if "skills" in fields:
            skills = {skill.id: skill for skill in (*card.skills, *fields["skills"])}
            fields["skills"] = tuple(skills.values())
        card = msgspec.structs.replace(card, **fields)
    if not card.capabilities.extended_agent_card:
        capabilities = msgspec.structs.replace(card.capabilities, extended_agent_card=True)
        card = msgspec.structs.replace(card, capabilities=capabilities)
    return decode(encode(card), AgentCard)  # checks the fields, as clients will


def check_caller(caller: Caller, *, has_card: bool, authenticates: bool) -> None:
    """Refuse callers who may not see the extended card.

    A server that identifies callers shows it to authenticated ones. Without ``caller=``, everyone
    gets it.

    Raises ``UnsupportedOperationError``, ``UnauthenticatedError``.
    """
    if not has_card:
        raise UnsupportedOperationError("this agent has no extended card")
    if authenticates and not caller.authenticated:
        raise UnauthenticatedError("the extended card is for callers who say who they are")


def _check(changes: Changes) -> None:
    if not isinstance(changes, Mapping):
        if not isinstance(changes, AgentCard):
            raise TypeError(f"expected an AgentCard or a mapping, got {type(changes).__name__}")
        return
    unknown = [name for name in changes if name not in AgentCard.__struct_fields__]
    if unknown:
        fields = ", ".join(AgentCard.__struct_fields__)
        raise ValueError(f"a card has no {', '.join(map(str, unknown))}; its fields are {fields}")


def _arity(function: Callable[..., Any]) -> int:
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len([p for p in parameters if p.default is p.empty]) > 2:
        raise TypeError("the function of an extended card takes the caller and the public card")
    return min(len(parameters), 2)
