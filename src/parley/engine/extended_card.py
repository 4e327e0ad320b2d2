"""The extended card of an agent (specification §3.1.11, §13.3)."""

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
