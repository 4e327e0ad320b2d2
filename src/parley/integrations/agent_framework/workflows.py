"""A workflow of the framework, run for a turn from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

from agent_framework import AgentResponse, AgentResponseUpdate, Content, Message

from parley.agent.turn import Turn
from parley.integrations.agent_framework.checkpoints import TaskCheckpoints, is_of_framework
from parley.integrations.agent_framework.contents import message_of
from parley.integrations.agent_framework.requests import answer_to, yes_or_no
from parley.integrations.agent_framework.running import plain
from parley.integrations.agent_framework.sessions import Bounds
from parley.integrations.agent_framework.shown import ShownUpdates
from parley.integrations.answers import fitting, said_in
from parley.integrations.conversations import ContextConversation
from parley.llm.run_output import RunOutput

CONVERSATION = "agent_framework.conversation"
"""The key of the messages of a context."""


async def run_workflow(
    build: Callable[[], Any],
    turn: Turn,
    output: RunOutput,
    *,
    bounds: Bounds,
    types: Iterable[str] = (),
) -> str | None:
    """Run a workflow until it has nothing more to do. Returns what else to say.

    Each checkpoint is kept in the store. What the workflow requests is asked of the caller, and the
    workflow goes on from the checkpoint that waits for it.
    """
    checkpoints = TaskCheckpoints(turn, types)
    conversation = ContextConversation(
        turn, CONVERSATION, max_messages=bounds.max_messages, max_bytes=bounds.max_bytes
    )
    history = await conversation.earlier()
    events = _Events(output)
    while True:
        checkpoint = await checkpoints.newest()
        workflow = build()
        options: dict[str, Any] = {"checkpoint_storage": checkpoints}
        if checkpoint is None:
            options["message"] = await _input(turn, workflow, history)
        else:
            options["checkpoint_id"] = checkpoint.checkpoint_id
            pending = checkpoint.pending_request_info_events
            if pending:
                options["responses"] = {
                    key: await _response(turn, pending[key], key) for key in sorted(pending)
                }
        requests = 0
        async for event in workflow.run(stream=True, **options):
            requests += event.type == "request_info"
            await events.show(event)
        if not requests:
            break
        await output.new_message()
    if not output.requests.has_said:
        return "The workflow ended without an output."
    if events.said:
        asked = {"role": "user", "text": turn.message.text}
        await conversation.add([asked, {"role": "assistant", "text": events.said}])
    return None


async def _input(turn: Turn, workflow: Any, history: list[dict[str, str]]) -> Any:
    """Return what the first executor takes: messages, text, or a value of its type."""
    types = workflow.get_start_executor().input_types
    if list[Message] in types:
        earlier = [Message(each["role"], [each["text"]]) for each in history]
        return [*earlier, await message_of(turn)]
    if Message in types:
        return await message_of(turn)
    own = [each for each in types if not is_of_framework(each)]
    if not own or (turn.data is None and str in own):
        return turn.message.text
    return fitting(turn, reduce(or_, own), said_in(turn.message))


async def _response(turn: Turn, event: Any, key: str) -> Any:
    """Ask the caller what a workflow requests, and return the answer in the type it wants."""
    asked, kind = event.data, event.response_type
    if isinstance(asked, Content) and asked.user_input_request:
        return await answer_to(turn, asked, key=key)
    shown = asked if isinstance(asked, str) else plain(asked)
    if kind is bool:
        question = shown if isinstance(shown, str) else f"Do you agree to {shown}?"
        return await yes_or_no(turn, question, key=key)
    if kind is str or kind is None:
        return (await turn.ask(shown, key=key)).text
    return await turn.ask(shown, answer=kind, key=key)


class _Events:
    """Shows the events of a workflow: executors as steps, its outputs as the answer."""

    def __init__(self, output: RunOutput) -> None:
        self.said = ""
        self._output = output
        self._shown = ShownUpdates(output)
        self._spoke = ""

    async def show(self, event: Any) -> None:
        """Show an event."""
        if event.type == "executor_invoked":
            await self._output.step(event.executor_id)
        elif event.type == "output":
            await self._said(event.executor_id or "", event.data)
        elif event.type in ("intermediate", "data"):
            await self._output.step(event.executor_id or "", _text(event.data))

    async def _said(self, executor: str, data: Any) -> None:
        if isinstance(data, AgentResponse):
            contents = [each for message in data.messages for each in message.contents]
        elif isinstance(data, AgentResponseUpdate | Message):
            contents = list(data.contents)
        elif isinstance(data, Content):
            contents = [data]
        elif isinstance(data, list) and data and isinstance(data[0], Message):
            contents = [each for message in data for each in message.contents]
        elif isinstance(data, str):
            contents = [Content.from_text(data)]
        else:
            await self._output.data(plain(data))
            return
        if self.said and self._spoke != executor:
            await self._say("\n\n")
        self._spoke = executor
        for content in contents:
            if content.type == "text":
                self.said += content.text or ""
            await self._shown.content(content)
        await self._shown.flush()

    async def _say(self, text: str) -> None:
        self.said += text
        await self._output.text(text)


def _text(data: Any) -> str:
    """Return the text of an intermediate output."""
    text = getattr(data, "text", data)
    return text if isinstance(text, str) else str(text)
