"""The skills of another agent as a toolset of Pydantic AI; contents from and to parts."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import CallDeferred, ToolFailed
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    UserContent,
    VideoUrl,
)
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import FunctionToolset

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.message_files import input_of
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.model.parts import Message, Part

ASKED = "parley"
"""The member of a deferred call's metadata that says which task asks."""


async def toolset(agent: Callee, *, defer_questions: bool = True, **options: Any) -> RemoteToolset:
    """Return the skills of an agent, for ``Agent(toolsets=[await pydantic_ai.toolset(url)])``.

    Names, descriptions and parameters are those of the card. A question of the agent defers the
    call: the run ends with ``DeferredToolRequests``, which the agent needs among its output types;
    ``RemoteToolset.results`` answers. Within a turn (``agent``) the caller of the turn is asked.
    Without ``defer_questions`` the model gets the question as the result. ``options`` are options
    of ``parley.connect``, and it raises what that raises.
    """
    skills = await remote_skills(agent, **options)
    return RemoteToolset(skills, address=_address(agent), defer_questions=defer_questions)


class RemoteToolset(FunctionToolset[Any]):
    """Skills of another agent. ``skills`` has them by the names of their tools."""

    def __init__(
        self, skills: list[RemoteSkill], *, address: str = "", defer_questions: bool = True
    ) -> None:
        super().__init__([_tool(skill, address, defer_questions) for skill in skills])
        self.skills = {skill.name: skill for skill in skills}
        self.address = address

    async def results(
        self, requests: DeferredToolRequests, answers: Mapping[str, Any]
    ) -> DeferredToolResults:
        """Answer the questions of the agent, by the ids of the deferred calls.

        Returns what the next run takes as ``deferred_tool_results``. Raises ``RemoteQuestion`` if
        the agent asks again; answer that with ``RemoteSkill.answer``.
        """
        results = DeferredToolResults()
        for call in requests.calls:
            asked = (requests.metadata.get(call.tool_call_id) or {}).get(ASKED)
            if asked and asked["address"] == self.address and call.tool_call_id in answers:
                skill = self.skills[asked["skill"]]
                answered = await skill.answer(asked["task"], answers[call.tool_call_id])
                results.calls[call.tool_call_id] = returned(answered)
        return results


def _tool(skill: RemoteSkill, address: str, defer_questions: bool) -> Tool[Any]:
    async def call(ctx: RunContext[Any], **arguments: Any) -> Any:
        # The same in a further attempt at a turn, which begins with the same messages.
        key = f"{len(ctx.messages)}:{ctx.tool_call_id}"
        try:
            result = await skill.call(arguments, key=key, pass_questions=False)
        except RemoteQuestion as question:
            if not defer_questions:
                return f"{skill.card.name} asks: {question.text}"
            asked = {
                "address": address, "skill": skill.name,
                "task": question.task.id, "question": question.text, "schema": question.schema,
            }  # fmt: skip
            raise CallDeferred({ASKED: asked, "question": question.text}, kind="question") from None
        if result.is_error:
            raise ToolFailed(result.text)
        return returned(result)

    return Tool.from_schema(
        call, skill.name, skill.description, dict(skill.parameters), takes_ctx=True
    )


def returned(result: ToolResult) -> Any:
    """Return the result of a skill as the result of a tool, with its files as contents."""
    value = result.data if result.data is not None else result.text
    files = contents_of(result.parts)
    return ToolReturn(return_value=value, content=files) if files else value


def _address(agent: Callee) -> str:
    return agent if isinstance(agent, str) else str(getattr(agent, "name", "") or "")


async def prompt_of(turn: Turn, message: Message) -> str | list[UserContent]:
    """Return a message as a prompt; its files are read."""
    said: list[UserContent] = []
    for each in await input_of(turn, message):
        if isinstance(each, str):
            said.append(each)
        else:
            said.append(BinaryContent(data=each.content, media_type=each.media_type))
    if all(isinstance(each, str) for each in said):
        return "\n".join(str(each) for each in said)
    return said


def file_of(value: Any) -> Part | None:
    """Return a file of Pydantic AI as a part, ``None`` for anything else."""
    if isinstance(value, BinaryContent):
        name = f"file{mimetypes.guess_extension(value.media_type) or ''}"
        return Part(raw=value.data, media_type=value.media_type, filename=name)
    if isinstance(value, FileUrl) and value.url.startswith(("http://", "https://")):
        guessed = mimetypes.guess_type(value.url)[0]
        return Part(url=value.url, media_type=guessed or "")
    return None


def contents_of(parts: Sequence[Part]) -> list[UserContent]:
    """Return the files among parts as contents of Pydantic AI."""
    found: list[UserContent] = []
    kinds: dict[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    for part in parts:
        media_type = part.media_type or "application/octet-stream"
        if part.raw is not None:
            found.append(BinaryContent(data=part.raw, media_type=media_type))
        elif part.url is not None:
            kind = kinds.get(media_type.partition("/")[0], DocumentUrl)
            found.append(kind(url=part.url, media_type=media_type))
    return found
