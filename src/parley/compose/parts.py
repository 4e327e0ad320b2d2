"""The parts of compositions: local agents, remote agents, and functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from parley.agent.agent import Agent, slug
from parley.agent.blocking_turn import BlockingTurn
from parley.agent.remote.callees import Callee, Connectable, address_of, referred
from parley.agent.turn import Turn
from parley.agent.uses import UsableAgent
from parley.client.card.resolver import CatalogReference, ForeignCard
from parley.engine.skill import form_of
from parley.engine.typed.function import parameters_of
from parley.model.cards import AgentCard
from parley.model.typed.schema import signature_of

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class CompositionPart(Connectable):
    """A part of a composition. ``part`` makes it.

    ``target`` is the agent to call. Without it, ``function`` is called with the message's text, as
    a step of the composing turn. ``timeout`` is the time limit in seconds, ``returns`` the type of
    its result, ``skill`` the id of the agent's skill, ``connection`` are options of
    ``parley.connect`` for a remote agent. ``key`` identifies its calls in the log: it is made of
    position and name, so that a later attempt finds them.
    """

    name: str
    function: Function | None = None
    timeout: float | None = None
    pass_questions: bool = True
    key: str = ""
    returns: Any = None
    skill: str = ""

    @property
    def agent(self) -> Agent | None:
        """The local agent that the part calls, ``None`` for any other part."""
        return self.target if isinstance(self.target, Agent) else None

    @property
    def address(self) -> str:
        """The name of the part's agent in the log; empty for a function."""
        return "" if self.target is None else address_of(referred(self.target)[0])


_AGENTS: WeakValueDictionary[tuple[Any, str], Agent] = WeakValueDictionary()
"""The agents of functions, by function and agent name, since a part may be given twice."""

PartLike = Callee | Function | CompositionPart
"""The accepted forms of a part."""


def part(
    given: PartLike,
    *,
    name: str = "",
    timeout: float | None = None,
    pass_questions: bool = True,
    returns: Any = None,
    skill: str = "",
    **connection: Any,
) -> CompositionPart:
    """Return a part of a composition with options that its agent or function lacks.

    ``given`` is an ``Agent``, an address, a card, a result of ``parley.find``, or a function. A
    function of a text is a step of the composition; a function of a ``Turn`` or of typed values, or
    a generator, becomes a skill of a separate agent. A single parameter without a type is the text,
    as in a ``lambda``, unless its name is ``turn``.

    ``name`` is used in questions, progress, failures and the drawing. ``timeout`` is the time limit
    of each call in seconds. ``skill`` is the id of the agent's skill that is called. ``returns`` is
    the type of ``Outcome.data``; a result that does not fit is a failure. ``connection`` are
    options of ``parley.connect`` for a remote agent, such as ``bearer=``.

    Raises ``TypeError`` for an object that cannot be a part, and ``ValueError`` for options that do
    not apply to it.
    """
    if isinstance(given, CompositionPart):
        made = given
        connection = {**given.connection, **connection}
    elif isinstance(given, UsableAgent):
        made = CompositionPart(given.name, target=given)
    elif inspect.isroutine(given) or (
        callable(given) and not isinstance(given, str | bytes | os.PathLike | Mapping)
    ):
        made = _of_function(given, name)
    elif isinstance(
        given, str | bytes | os.PathLike | Mapping | AgentCard | ForeignCard | CatalogReference
    ):
        made = CompositionPart(_name_of(given), target=given)
    else:
        raise TypeError(
            "a part of a composition is an Agent, an address, a card, a result of parley.find, or "
            f"a function, not {given!r}"
        )
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}")
    if skill and made.target is None:
        raise ValueError(f"{made.name!r} is a function, so it has no skill: leave out skill=")
    if connection and (made.target is None or made.agent is not None):
        raise ValueError(
            f"{made.name!r} runs in this process, so nothing connects to it: leave out "
            f"{', '.join(f'{each}=' for each in connection)}"
        )
    return with_changes(
        made,
        name=name.strip() or made.name,
        timeout=made.timeout if timeout is None else timeout,
        pass_questions=made.pass_questions and pass_questions,
        returns=made.returns if returns is None else returns,
        skill=skill or made.skill,
        connection=connection,
    )


def parts_of(given: Sequence[PartLike]) -> tuple[CompositionPart, ...]:
    """Return the parts of a composition, with keys made of their positions and names.

    Parts with equal names get numbers, except the first. Raises the errors of ``part``.
    """
    found: list[CompositionPart] = []
    names: set[str] = set()
    for position, each in enumerate(given, 1):
        made = part(each)
        name, number = made.name, 1
        while name in names:
            number += 1
            name = f"{made.name} {number}"
        names.add(name)
        found.append(with_changes(made, name=name, key=f"{position}-{slug(name)[:80]}"))
    return tuple(found)


def _of_function(function: Any, name: str) -> CompositionPart:
    plain = getattr(function, "__name__", None) or type(function).__name__
    if plain == "<lambda>":
        plain = "function"
    title = name.strip() or plain.replace("_", " ").strip().capitalize()
    is_of_text = _is_of_text(function)
    takes, inputs = ("text", None) if is_of_text else parameters_of(function, (Turn, BlockingTurn))
    if takes in ("text", "nothing") and inputs is None and not form_of(function).streams:
        if takes == "nothing":
            raise TypeError(
                f"the function {plain!r} has no parameter, and a part gets a message: "
                f"def {plain}(text: str)"
            )
        return CompositionPart(title, function=function)
    agent = _AGENTS.get((function, title))
    if agent is None:
        agent = Agent(title, description=inspect.getdoc(function) or title)
        agent.skill(function)
        _AGENTS[function, title] = agent
    return CompositionPart(title, target=agent)


def _is_of_text(function: Any) -> bool:
    """Return whether a function has a single untyped parameter that is not named ``turn``."""
    parameters = [*signature_of(function).parameters.values()]
    return len(parameters) == 1 and (
        parameters[0].annotation is inspect.Parameter.empty and parameters[0].name != "turn"
    )


def _name_of(target: Any) -> str:
    if isinstance(target, CatalogReference | AgentCard):
        return target.name
    if isinstance(target, Mapping):
        return str(target.get("name") or "agent")[:100]
    if isinstance(target, str) and "://" in target:
        address = urlsplit(address_of(target))
        path = address.path.strip("/").rpartition("/")[2]
        return path or address.netloc
    if isinstance(target, os.PathLike):
        return os.path.splitext(os.path.basename(os.fspath(target)))[0] or "agent"
    return "agent"
