"""``Composition``: an agent that is made of other agents, and the checks of its options."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from parley.agent.agent import Agent, slug
from parley.agent.turn import Turn
from parley.compose.calling import Calling, cancel_parts
from parley.compose.drawing import OUT, Drawable, Edge, drawn, in_order, svg_of
from parley.compose.outcome import Budget, HandsOver
from parley.compose.parts import CompositionPart, PartLike, parts_of
from parley.engine.turn.attempt import Failed
from parley.extensions.declared import CompositionPicture
from parley.model.cards import AgentExtension
from parley.model.extensions import Extension
from parley.model.parts import Message

Run = Callable[[Calling, Message], Awaitable[object]]
"""The function of a combinator: it calls parts for a message, and returns the answer of the
composition: an ``Outcome``, or any value that a skill may return.
"""


class Composition(Agent, Drawable):
    """An agent that is made of other agents: ``run`` decides how ``parts`` are called.

    It has one skill, whose card entry describes the abilities of its parts. It accepts all
    ``options`` of ``Agent``, and is served, called, found and nested like any other agent.

    ``parts`` are agents of this process, remote agents, or functions (``part``). ``kind`` is the
    combinator's name. ``edges`` are drawn between the parts; by default each part leads to the
    next. ``budget`` is the maximum cost of one message, within the caller's budget. ``progress``:
    messages and answers of working parts are passed on as progress. ``picture``: the card and the
    page of the agent show its parts.

    Raises ``ValueError`` without parts, and the errors of ``part`` and ``Agent``.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[PartLike],
        run: Run,
        *,
        kind: str = "composition",
        edges: Iterable[Edge] | None = None,
        budget: Budget | None = None,
        progress: bool = True,
        picture: bool = True,
        description: str = "",
        skill_tags: Iterable[str] = (),
        examples: Iterable[str] = (),
        uses: Iterable[Agent] = (),
        extensions: Iterable[Extension | AgentExtension] = (),
        **options: Any,
    ) -> None:
        self.parts = parts_of(parts)
        if not self.parts:
            raise ValueError(f"the composition {name!r} has no parts; give it one or more")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget is a Budget, such as Budget(calls=10), not {budget!r}")
        self.kind = kind
        self.edges = in_order(len(self.parts)) if edges is None else tuple(edges)
        self.budget = budget
        agents = [each.agent for each in self.parts if each.agent is not None]
        used = list({id(each): each for each in (*agents, *uses)}.values())
        modes = _modes_of(self.parts, self.edges, options)
        shown = [CompositionPicture(drawn(self), svg_of(self))] if picture else []
        super().__init__(
            name,
            description=description or f"{kind.capitalize()} of {_listed(self.parts)}.",
            uses=used,
            extensions=[*extensions, *shown],
            **modes,
        )
        self._run = run
        skills = [skill for agent in agents for skill in agent.skills.values()]

        async def composed(turn: Turn) -> Any:
            calling = Calling(turn, name, budget=budget, shows_progress=progress)
            try:
                return await calling.result(await run(calling, turn.message))
            except HandsOver as over:
                await cancel_parts(calling)  # the conversation continues without their answers
                return over.handoff
            except Failed as failure:
                failure.metadata = calling.cost
                raise

        self.skill(
            id=slug(name),
            name=name,
            description=self.description,
            tags=[*skill_tags] or list(dict.fromkeys(t for s in skills for t in s.tags))[:16],
            examples=[*examples] or list(dict.fromkeys(e for s in skills for e in s.examples))[:8],
            replies="task",
        )(composed)

    def mermaid(self) -> str:
        """Return a picture of the composition, with its nested compositions, for Mermaid."""
        return drawn(self)

    def svg(self) -> str:
        """Return the same picture as SVG."""
        return svg_of(self)


def _listed(parts: Sequence[CompositionPart]) -> str:
    names = [each.name for each in parts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _modes_of(
    parts: Sequence[CompositionPart], edges: Sequence[Edge], options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of the agent, with modes taken from its parts unless the options name
    them.

    The input modes are those modes of parts that get the message, and the output modes are those
    modes of parts whose answer is the composition's. The modes of a remote agent are unknown.
    """
    first = {end for start, end, _ in edges if start < 0}
    last = {start for start, end, _ in edges if end == OUT}
    found = dict(options)
    if "input_modes" not in found and first:
        taken = [_agent_modes(parts[index], "input_modes") for index in sorted(first)]
        if all(taken):
            found["input_modes"] = list(dict.fromkeys(m for modes in taken for m in modes or ()))
    if "output_modes" not in found and last:
        sent = [_agent_modes(parts[index], "output_modes") for index in sorted(last)]
        listed = list(dict.fromkeys(m for modes in sent for m in modes or ("text/plain", "*/*")))
        found["output_modes"] = listed
    return found


def _agent_modes(part: CompositionPart, which: str) -> tuple[str, ...] | None:
    agent = part.agent
    if agent is None:
        return None
    own: tuple[str, ...] = getattr(agent, which)
    of_skills = [getattr(skill, which) for skill in agent.skills.values()]
    if which == "input_modes" and not own and not all(of_skills):
        return None
    return tuple(dict.fromkeys([*own, *(mode for modes in of_skills for mode in modes)]))


def check_decides(function: Any, option: str, returns: str) -> None:
    """Reject a function that is not a plain one. Raises ``TypeError``."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if not callable(function) or inspect.iscoroutinefunction(target):
        raise TypeError(
            f"{option} is a plain function that returns {returns}, not {function!r}: a coroutine "
            "would count as true; have an agent decide with route(agent, ...)"
        )


def check_failures(failures: str, at_least: int) -> None:
    """Reject an invalid rule for failures. Raises ``ValueError``."""
    if failures not in ("fail", "partial"):
        raise ValueError(f"failures is 'fail' or 'partial', not {failures!r}")
    if failures == "fail" and at_least != 1:
        raise ValueError("at_least goes with failures='partial': with 'fail' all have to answer")


def check_seconds(timeout: float | None) -> None:
    """Reject an invalid time limit. Raises ``ValueError``."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}")
