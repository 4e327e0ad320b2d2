"""The runs of one turn: from a checkpoint to the next, until the output is there."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import agents
import msgspec
from agents.items import ToolApprovalItem
from agents.result import RunResultStreaming
from agents.run_state import RunState

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.approvals import approval
from parley.integrations.conversations import ContextConversation
from parley.integrations.openai_agents.conversation import KEY, MAX_BYTES, in_pairs, short
from parley.integrations.openai_agents.event_display import EventDisplay
from parley.integrations.openai_agents.failures import Refusal, reject_tripped
from parley.integrations.openai_agents.inputs import input_item
from parley.integrations.openai_agents.output_types import is_text, json_of, schema_of
from parley.integrations.openai_agents.run_context import decoded, encoded
from parley.integrations.remembered_calls import CallKeys
from parley.integrations.task_values import CHECKPOINT_BYTES, TaskValue
from parley.integrations.threads import thread_id
from parley.llm.remote_skills import RemoteSkill
from parley.llm.run_output import RunOutput

STEP = "openai-agents"


SETTLED = "urn:parley:openai-agents:session"
"""Where a context keeps how many items its session has of what is not in doubt."""

HAS_IT = "urn:parley:openai-agents:agent"
"""Where a context keeps the name of the agent that has the conversation."""

_RUN: ContextVar[TurnRun | None] = ContextVar("parley_openai_agents_run", default=None)


class TurnRun:
    """Runs an agent for one turn. ``results`` has the results of remote calls, by call.

    A run stops after each round of tool calls, and where a call needs approval: its state is then
    kept until the task ends, in place of the one before. The next run continues from it, also in a
    later attempt. A call of a remote skill stops the run too and is made here, so that its question
    finds the state kept. All runs have the same context, which is kept with the state if it is
    data.
    """

    def __init__(
        self,
        thing: agents.Agent[Any],
        turn: Turn,
        output: RunOutput,
        *,
        session: Callable[[str], Any] | None,
        context: Callable[[Turn], Any] | None,
        config: agents.RunConfig | None,
        refusal: Refusal | None,
        **runner: Any,
    ) -> None:
        self.requests = output.requests
        self._agent = self._begins = thing
        self._turn = turn
        self._output = output
        self._session: Any = None if session is None else session(thread_id(turn))
        self._context = None if context is None else context(turn)
        if config is None:
            config = agents.RunConfig(workflow_name=thing.name, group_id=thread_id(turn))
        if session is not None and config.session_input_callback is None:
            config = dataclasses.replace(config, session_input_callback=in_pairs)
        self._runner = {"session": self._session, "run_config": config, **runner}
        self._refusal = refusal
        self._display = EventDisplay(output, config)
        self._conversation = ContextConversation(turn, KEY, max_bytes=MAX_BYTES, shorten=short)
        self.results: dict[str, ToolResult] = {}
        self._kept = TaskValue(turn, STEP)
        self._keys = CallKeys()
        self._rounds = 0

    async def run(self) -> None:
        """Run until there is an output, and show it."""
        item = await input_item(self._turn)
        token = _RUN.set(self)
        try:
            result = await self._result(item)
        finally:
            _RUN.reset(token)
        if self._session is None:
            made = [each for each in result.new_items if not isinstance(each, ToolApprovalItem)]
            await self._conversation.add([item, *(each.to_input_item() for each in made)])
        await self._settled()
        if result.last_agent is not self._begins:
            await self._turn.remember(HAS_IT, result.last_agent.name)
        await self._show(result)

    def call_key(self, said: str) -> str:
        """Return a key for a call that the model of a sub-agent makes; the same when it re-runs."""
        return self._keys.key(f"{STEP}:{self._rounds}:sub-agent", said)

    # -- from one checkpoint to the next -------------------------------------------------------

    async def _result(self, item: dict[str, Any]) -> RunResultStreaming:
        kept = await self._kept.read()
        name = await self._turn.recall(HAS_IT, "")
        self._begins = next(
            (each for each in reachable(self._agent) if each.name == name), self._agent
        )
        given: Any = [item]
        if self._session is not None:
            length = await self._turn.step(f"{STEP}:session", self._session_length)
            await self._drop_later_than(length if kept is None else kept["length"])
        elif kept is None:
            given = [*await self._conversation.earlier(), item]
        if kept is not None:
            self._rounds = kept["round"]
            self._context = decoded(kept["context"], self._context)
            given = await RunState.from_json(
                self._agent, kept["state"], context_override=self._context
            )
        while True:
            if isinstance(given, RunState):
                await self._decide(given)
            self._rounds += 1
            result = await self._followed(given)
            given = result.to_state()
            state = given.to_json(context_serializer=lambda _: {})
            if state.get("current_step") is None:
                return result
            context, state["context"]["context"] = result.context_wrapper.context, None
            kept = {"round": self._rounds, "state": state, "context": encoded(context)}
            if result.interruptions or len(msgspec.json.encode(kept)) <= CHECKPOINT_BYTES:
                kept["length"] = await self._settled()
                await self._kept.write(kept)

    async def _followed(self, given: Any) -> RunResultStreaming:
        """Run and show what happens, until a round of tool calls is done, or the end."""
        context = None if isinstance(given, RunState) else self._context
        result = agents.Runner.run_streamed(self._begins, given, context=context, **self._runner)
        try:
            async for event in result.stream_events():
                if await self._display.show(event, result):
                    result.cancel(mode="after_turn")
        except Exception as error:
            reject_tripped(self._turn, error, self._refusal)
            raise
        finally:
            if not result.is_complete:
                result.cancel()
            if (loop := result.run_loop_task) is not None and not loop.done():
                await asyncio.wait({loop})
        return result

    # -- questions -----------------------------------------------------------------------------

    async def _decide(self, state: RunState[Any]) -> None:
        """Have the caller approve or refuse what waits for that, and make remote calls."""
        waiting = state.get_interruptions()
        skills = {number: _skill_of(each) for number, each in enumerate(waiting)}
        remote = {number: skill for number, skill in skills.items() if skill is not None}
        await asyncio.gather(*[self._call(state, waiting[n], remote[n]) for n in remote])
        for number, item in enumerate(waiting):
            if number in remote:
                continue
            key = f"{STEP}:{self._rounds}:{number}"
            decision = await approval(
                self._turn, item.name or "of the model", item.arguments or "no arguments", key=key
            )
            if decision.is_approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=decision.reason or None)

    async def _call(self, state: RunState[Any], item: ToolApprovalItem, skill: RemoteSkill) -> None:
        call_id = str(item.call_id)
        try:
            arguments = json.loads(item.arguments or "{}")
        except ValueError:
            arguments = {"message": item.arguments}
        key = f"{STEP}:{self._rounds}:{call_id}"
        self.results[call_id] = await skill.call(arguments, key=key)
        state.approve(item)

    # -- the end -------------------------------------------------------------------------------

    async def _show(self, result: RunResultStreaming) -> None:
        final = result.final_output
        if is_text(result.last_agent) or isinstance(final, str):
            await self._display.release()
            if not self._display.has_said and final is not None:
                await self._output.text(final if isinstance(final, str) else str(json_of(final)))
        elif final is not None:
            await self._output.data(json_of(final), schema=schema_of(result.last_agent))

    # -- the session ---------------------------------------------------------------------------

    async def _session_length(self) -> int:
        return len(await self._session.get_items())

    async def _settled(self) -> int:
        """Note how long the session is now, where a task asks or has ended, and return it."""
        if self._session is None:
            return 0
        length = await self._session_length()
        await self._turn.remember(SETTLED, length)
        return length

    async def _drop_later_than(self, length: int) -> None:
        """Take back what an attempt that crashed added to the session after the checkpoint.

        What other tasks of the context have said since then stays.
        """
        settled = await self._turn.recall(SETTLED, 0)
        for _ in range(await self._session_length() - max(length, settled)):
            await self._session.pop_item()


def current_run() -> TurnRun | None:
    """Return the run of a turn in which a tool or a model is called, ``None`` outside of one."""
    return _RUN.get()


def reachable(thing: agents.Agent[Any]) -> Iterator[agents.Agent[Any]]:
    """Yield an agent and those that it hands off to, each once."""
    seen: set[int] = set()
    todo: list[Any] = [thing]
    while todo:
        each = todo.pop(0)
        if isinstance(each, agents.Handoff):
            each = each._agent_ref and each._agent_ref()
        if isinstance(each, agents.Agent) and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += each.handoffs


def _skill_of(item: ToolApprovalItem) -> RemoteSkill | None:
    """Return the remote skill that a call which waits is one of, ``None`` for other tools."""
    called = [
        getattr(each, "on_invoke_tool", None) for each in item.agent.tools if each.name == item.name
    ]
    skills = [getattr(each, "skill", None) for each in called]
    return next((each for each in skills if isinstance(each, RemoteSkill)), None)
