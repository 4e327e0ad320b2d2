"""A skill: a function of an agent, and its description on the card (specification §4.4.5)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal

import msgspec

from parley.engine.content import KINDS
from parley.engine.typed.function import ResultType, Takes
from parley.engine.typed.inputs import Inputs
from parley.model.cards import AgentSkill
from parley.security.disclosure import PUBLIC, Listing
from parley.security.limits.declaration import Limit
from parley.security.schemes.scheme import Security

Replies = Literal["message", "task"]

InvalidInput = Literal["refuse", "ask"]
"""The treatment of a message that does not fit typed parameters."""


class Form(Enum):
    """The form of a function, which decides how it is called."""

    COROUTINE = "async def"
    ASYNC_GENERATOR = "async generator"
    PLAIN = "def"
    GENERATOR = "generator"

    @property
    def streams(self) -> bool:
        """True if the function yields."""
        return self is Form.ASYNC_GENERATOR or self is Form.GENERATOR

    @property
    def in_thread(self) -> bool:
        """True if the function would block the event loop, so it runs in a thread."""
        return self is Form.PLAIN or self is Form.GENERATOR


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """A function with its description.

    ``takes`` is the function's argument: the turn, the message's text, nothing, or ``inputs``.
    ``result`` is the type in its return annotation, if that is data. ``security`` is the
    requirement for callers of this skill. ``listing`` limits who sees it on a card, and ``limits``
    bounds its usage by callers. With ``runs_on_cancel`` the function is called, with
    ``Attempt.is_canceling``, if its task is canceled while no turn runs.
    """

    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    replies: Replies | None
    default: bool
    function: Callable[..., Any]
    form: Form
    takes: Takes
    inputs: Inputs | None = None
    result: ResultType | None = None
    invalid_input: InvalidInput = "refuse"
    security: Security | None = None
    listing: Listing = PUBLIC
    limits: tuple[Limit, ...] = ()
    runs_on_cancel: bool = False

    @property
    def described(self) -> AgentSkill:
        """The skill as the card shows it."""
        return AgentSkill(
            id=self.id,
            name=self.name,
            description=self.description,
            tags=self.tags,
            examples=self.examples,
            input_modes=self.input_modes,
            output_modes=self.output_modes,
            security_requirements=() if self.security is None else self.security.declared(),
        )


def default_skill(skills: Mapping[str, Skill]) -> Skill:
    """Return the skill of messages that name none.

    It is the declared default, else the first public skill, else the first skill.
    """
    first = next(iter(skills.values()))
    first = next((skill for skill in skills.values() if skill.listing.is_public), first)
    return next((skill for skill in skills.values() if skill.default), first)


def form_of(function: Callable[..., Any]) -> Form:
    """Return the form of ``function``."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    target = inspect.unwrap(target)
    if inspect.isasyncgenfunction(target):
        return Form.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(target):
        return Form.COROUTINE
    if inspect.isgeneratorfunction(target):
        return Form.GENERATOR
    return Form.PLAIN


def strings_of(values: Iterable[str], what: str) -> tuple[str, ...]:
    """Return ``values`` as a tuple. Raises ``TypeError`` for a single string."""
    if isinstance(values, str):
        raise TypeError(f"{what} is a list of strings, such as [{values!r}]")
    return tuple(values)


def modes_of(values: Iterable[str]) -> tuple[str, ...]:
    """Return ``values`` as a tuple of media types and kinds of parts.

    Raises ``ValueError`` for anything else.
    """
    modes = strings_of(values, "modes")
    for mode in modes:
        if mode.count("/") != 1 and mode not in KINDS:
            raise ValueError(
                f"{mode!r} is not a media type such as text/plain, nor one of {', '.join(KINDS)}"
            )
    return modes
