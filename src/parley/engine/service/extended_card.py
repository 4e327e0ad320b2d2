"""The card that an agent shows to callers whom it knows (specification §3.1.11, §13.3)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from parley.engine.skill import form_of
from parley.model.cards import AgentCard
from parley.model.encoding import decode, encode
from parley.model.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.incident import log_incident
from parley.model.service import Caller

log = logging.getLogger("parley.agent")

Changes = AgentCard | Mapping[str, Any]
"""A whole card, or what it has that the public card has not: fields by their Python names."""

ExtendedCard = Changes | Callable[..., Changes | Awaitable[Changes | None] | None]
"""The card for all callers, or a function of the caller (and the public card) that returns it."""


class ExtendedCards:
    """Makes the extended cards of an agent.

    A function takes nothing, the caller, or the caller and the public card; ``None`` from it means
    that there is none for this caller.

    Raises ``TypeError`` and ``ValueError`` for what can be no card.
    """

    def __init__(self, source: ExtendedCard) -> None:
        self._function: Callable[..., Any] | None = None
        self._value: Changes | None = None
        if isinstance(source, AgentCard | Mapping):
            _check(source)
            self._value = source
        elif callable(source):
            self._function = source
            self._takes = _takes(source)
            self._blocks = form_of(source).in_thread
        else:
            raise TypeError(
                "an extended card is an AgentCard, a mapping of the card's fields, or a function "
                f"that returns one of them, not {source!r}"
            )

    async def of(
        self, card: AgentCard, caller: Caller, in_thread: Callable[..., Awaitable[Any]]
    ) -> AgentCard:
        """Return the card for a caller; ``card`` is the public one.

        Raises ``ExtendedAgentCardNotConfiguredError`` when there is none for this caller.
        """
        changes: Any = self._value
        try:
            if self._function is not None:
                given = (caller, card)[: self._takes]
                if self._blocks:
                    changes = await in_thread(self._function, *given)
                else:
                    changes = self._function(*given)
                if inspect.isawaitable(changes):
                    changes = await changes
            if changes is not None:
                return extended(card, changes)
        except A2AError:
            raise
        except Exception:
            reference = log_incident(log, "making an extended card")
            words = f"the card could not be made; the server's log says why under {reference}"
            raise InternalError(words) from None
        raise ExtendedAgentCardNotConfiguredError("there is no extended card for this caller")


def extended(card: AgentCard, changes: Changes) -> AgentCard:
    """Return a card with changes: skills are added to it, or take the place of those of the same
    id; any other field is replaced.

    Raises ``TypeError`` and ``ValueError`` for what can be no card.
    """
    if isinstance(changes, AgentCard):
        made = changes
    else:
        _check(changes)
        given = dict(changes)
        if "skills" in given:
            skills = {skill.id: skill for skill in (*card.skills, *given["skills"])}
            given["skills"] = tuple(skills.values())
        made = msgspec.structs.replace(card, **given)
    if not made.capabilities.extended_agent_card:
        capabilities = msgspec.structs.replace(made.capabilities, extended_agent_card=True)
        made = msgspec.structs.replace(made, capabilities=capabilities)
    return decode(encode(made), AgentCard)  # as others will read it: fields are checked


def check_caller(cards: ExtendedCards | None, caller: Caller, *, authenticates: bool) -> None:
    """Refuse who may not see an extended card.

    A server that tells callers apart shows it to those whom it knows; one that does not, shows it
    to all: its operator has put it where everybody may see everything.

    Raises ``UnsupportedOperationError``, ``UnauthenticatedError``.
    """
    if cards is None:
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


def _takes(function: Callable[..., Any]) -> int:
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len([p for p in parameters if p.default is p.empty]) > 2:
        raise TypeError("the function of an extended card takes the caller and the public card")
    return min(len(parameters), 2)
