"""The engine's view of an agent: options, skills, and extended card (§3.1.11, §13.3).

``Agent`` makes the description, and ``host/`` passes it on.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.engine.agent_options import (
    NO_RULES,
    AgentRules,
    BindingSettings,
    Changes,
    Execution,
    ExtendedCard,
    Retention,
)
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
from parley.model.service import Caller
from parley.model.struct import decode, encode
from parley.security.authorization import Authorization
from parley.security.disclosure import InterfaceListings
from parley.security.limits.declaration import Limit
from parley.security.owner import PER_CALLER, OwnerPolicy


class AgentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The key, card, skills and options of one agent.

    ``card`` has no interfaces, which depend on the server. The agent's tasks are stored under
    ``key``. ``authorization`` has the rules about callers, if there are any. ``owner`` decides who
    owns tasks. ``limits`` apply to the agent and to its skills. ``transfers_files`` is false for an
    agent without files by reference, even if its server stores files. ``declares_schemas``: the
    card has the schemas of typed skills. ``interfaces`` limits who sees an address of the agent.
    ``envelope`` has its settings for the envelope protocol, ``False`` if it does not support that;
    ``rules`` are their effects on all bindings. ``handoffs`` names the agents to which it may hand
    over conversations. The default skill answers messages that name no skill, unless there is a
    ``router``.
    """

    key: str
    card: AgentCard
    skills: Mapping[str, Skill]
    default_skill: Skill
    router: Callable[..., Any] | None
    input_modes: tuple[str, ...]
    extended_cards: ExtendedCards | None
    extensions: tuple[Extension, ...]
    execution: Execution
    retention: Retention
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
        """Return the public card with the public interfaces of the server."""
        if self.interfaces is not None:
            interfaces = self.interfaces.public(interfaces)
        return replace(self.card, supported_interfaces=interfaces)

    @property
    def name(self) -> str:
        """The agent's name, as on its card."""
        return self.card.name

    @property
    def output_modes(self) -> tuple[str, ...]:
        """The output modes of a skill that declares none."""
        return self.card.default_output_modes

    @property
    def push_notifications(self) -> bool:
        """True if callers may register webhooks."""
        return bool(self.card.capabilities.push_notifications)


log = logging.getLogger("parley.engine")


class ExtendedCards:
    """Makes the extended card of each caller.

    A function has no parameters, or takes the caller, or the caller and the public card. It returns
    ``None`` if this caller gets no extended card.

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
                f"that returns either, not {source!r}"
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

        Raises ``ExtendedAgentCardNotConfiguredError`` if this caller gets no extended card.
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
    return decode(encode(card), AgentCard)  # validates the fields, as clients do


def check_caller(caller: Caller, *, has_card: bool, authenticates: bool) -> None:
    """Reject callers who may not see the extended card.

    A server that identifies callers shows it to authenticated ones. Without ``caller=``, everyone
    gets it.

    Raises ``UnsupportedOperationError``, ``UnauthenticatedError``.
    """
    if not has_card:
        raise UnsupportedOperationError("this agent has no extended card")
    if authenticates and not caller.authenticated:
        raise UnauthenticatedError("the extended card is for authenticated callers")


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
