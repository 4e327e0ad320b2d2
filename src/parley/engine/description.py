"""An agent as the engine knows it. ``Agent`` describes itself; ``host/`` hands the value over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from parley.engine.extended_card import ExtendedCards
from parley.engine.handoff.record import Handoffs
from parley.engine.options import Options
from parley.engine.skill import Skill
from parley.model.cards import AgentCard, AgentInterface
from parley.model.extensions import Extension
from parley.security.authorization import Authorization
from parley.security.disclosure import InterfaceListings
from parley.security.owner import PER_CALLER, OwnerPolicy
from parley.security.rates.limit import Limit

if TYPE_CHECKING:
    from parley.engine.replies.reply_handle import ReplyHandle


class WorkGate(Protocol):
    """A rule that refuses new work of an agent."""

    def check(self, skill: str) -> None:
        """Raise ``A2AError`` for a message to a skill that is refused now."""
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
    """What an author declares for an added binding, such as ``EnvelopeSettings``."""

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
    whom tasks belong. ``limits`` are those of the agent and of its skills.
    ``transfers_files`` is false for one that has no files by reference, whatever its server keeps.
    ``declares_schemas``: the card has the schemas of typed skills. ``interfaces`` says who sees
    which addresses of the agent. ``envelope`` is what it declares in the envelope protocol, False
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
        """Return the public card with those of a server's interfaces that all may see."""
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
