"""Interrupts of Strands as questions to the caller, and calls of remote skills that wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import said_in
from parley.integrations.strands.copies import agents_in
from parley.llm.remote_skills import RemoteSkill
from parley.model.errors import an
from parley.model.parts import Part

REMOTE = "parley:remote-call"
"""The name of an interrupt that is a call of a remote skill, which the turn makes."""


class Interrupts:
    """Answers the interrupts of one turn. ``results`` has those of remote calls, by tool use."""

    def __init__(self, turn: Turn, thing: Any) -> None:
        self.results: dict[str, ToolResult] = {}
        self._turn = turn
        self._thing = thing

    async def answers(self, interrupts: list[dict[str, Any]]) -> list[Any]:
        """Return the prompt that resumes: the response to each interrupt.

        Remote calls are made at the same time; questions are asked one after the other.
        """
        remote = [each for each in interrupts if each["name"] == REMOTE]
        await asyncio.gather(*[self._call(each) for each in remote])
        found = []
        for each in interrupts:
            response = "done" if each["name"] == REMOTE else await self._ask(each)
            found.append({"interruptResponse": {"interruptId": each["id"], "response": response}})
        return found

    async def _ask(self, interrupt: dict[str, Any]) -> Any:
        reason = interrupt.get("reason")
        if isinstance(reason, str) and reason:
            asked: Any = reason
        elif reason is None:
            asked = interrupt["name"]
        else:
            text = f"{interrupt['name']}: {json.dumps(reason, ensure_ascii=False)}"
            asked = [Part(text=text), Part(data=reason, media_type="application/json")]
        answer = await self._turn.ask(asked, key=f"strands:{interrupt['id']}")
        said = said_in(answer)
        return answer.text if said is None else said

    async def _call(self, interrupt: dict[str, Any]) -> None:
        call = interrupt["reason"]
        skill = self._skill(call["tool"])
        result = await skill.call(call["arguments"], key=f"strands:{interrupt['id']}")
        self.results[call["toolUseId"]] = result

    def _skill(self, tool: str) -> RemoteSkill:
        for each in agents_in(self._thing):
            skill = getattr(each.tool_registry.registry.get(tool), "skill", None)
            if isinstance(skill, RemoteSkill):
                return skill
        raise LookupError(f"the tool {tool!r}, which a call waits for, is no remote skill any more")


def unanswered(interrupts: Any) -> list[dict[str, Any]]:
    """Return interrupts as JSON. Raises ``TypeError`` for a reason that is no JSON."""
    found = []
    for each in interrupts or ():
        try:
            json.dumps(each.reason)
        except (TypeError, ValueError):
            raise TypeError(
                f"the reason of the interrupt {each.name!r} is {an(type(each.reason).__name__)}, "
                "which is no JSON; it is sent to the caller"
            ) from None
        found.append({"id": each.id, "name": each.name, "reason": each.reason})
    return found
