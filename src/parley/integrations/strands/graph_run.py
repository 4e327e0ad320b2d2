"""One turn of a graph or a swarm of Strands: its state is kept after every node."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.types.session import decode_bytes_values, encode_bytes_values

from parley.agent.turn import Turn
from parley.integrations.strands.contents import prompt_of
from parley.integrations.strands.current import CurrentRun, running
from parley.integrations.strands.event_display import StrandsDisplay
from parley.integrations.strands.failures import failed
from parley.integrations.strands.interrupts import Interrupts, unanswered
from parley.integrations.task_values import TaskValue
from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput

STEP = "strands-graph"


class GraphOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: MultiAgentResult) -> None:
        self.result = result
        super().__init__("the run is over")


class GraphRun:
    """Runs a graph or a swarm for one turn. It is this turn's own.

    Its state at an interrupt is a step of the task. Its state after each node is kept in the
    context until the task ends, so a crash repeats the nodes that had not ended.
    """

    def __init__(
        self, thing: MultiAgentBase, turn: Turn, output: RunOutput, state: dict[str, Any]
    ) -> None:
        self._graph: Any = thing
        self._turn = turn
        self._output = output
        self._state = state
        self._display = StrandsDisplay(output, set())
        self._interrupts = Interrupts(turn, thing)
        self._nodes = TaskValue(turn, "urn:parley:strands:graph")
        self._is_live = False
        self._kept: dict[str, Any] | None = None

    async def run(self) -> None:
        """Run until all nodes have ended, and show what the last ones said."""
        prompt: Any = await prompt_of(self._turn, self._turn.message)
        if len(prompt) == 1 and "text" in prompt[0]:
            prompt = prompt[0]["text"]
        number = 0
        with running(CurrentRun(self._interrupts)):
            while True:
                number += 1
                try:
                    self._kept = await self._turn.step(f"{STEP}:{number}", self._go, prompt, number)
                except GraphOver as over:
                    result = over.result
                    break
                assert self._kept is not None
                prompt = await self._interrupts.answers(self._kept["interrupts"])
        await self._finish(result)

    async def _go(self, prompt: Any, number: int) -> dict[str, Any]:
        if not self._is_live:
            self._is_live = True
            await self._restore(number)
        result = await self._result(prompt, number)
        if result.status is not Status.INTERRUPTED:
            raise GraphOver(result)
        return {"state": self._serialized(), "interrupts": unanswered(result.interrupts)}

    async def _restore(self, number: int) -> None:
        """Load the state after the newest node, or else at the newest interrupt."""
        kept = await self._nodes.read()
        if kept is not None and kept["number"] == number:
            state = kept["state"]
        elif self._kept is not None:
            state = self._kept["state"]
        else:
            return
        self._graph.deserialize_state(decode_bytes_values(state))

    def _serialized(self) -> Any:
        state = encode_bytes_values(self._graph.serialize_state())
        return msgspec.json.decode(msgspec.json.encode(state))

    async def _result(self, prompt: Any, number: int) -> MultiAgentResult:
        result: MultiAgentResult | None = None
        try:
            async with aclosing(self._graph.stream_async(prompt, self._state)) as events:
                async for event in events:
                    if isinstance(found := event.get("result"), MultiAgentResult):
                        result = found
                        continue
                    await self._display.show(event)
                    if event.get("type") == "multiagent_node_stop":
                        kept = {"number": number, "state": self._serialized()}
                        await self._nodes.write(kept)
        except Exception as error:
            failed(self._turn, error)
            raise
        assert result is not None
        return result

    async def _finish(self, result: MultiAgentResult) -> None:
        used = result.accumulated_usage
        self._output.used(
            ModelUsage(
                input_tokens=used.get("inputTokens", 0),
                output_tokens=used.get("outputTokens", 0),
                requests=max(1, result.execution_count),
            )
        )
        if result.status is Status.FAILED:
            self._turn.fail("A node failed.")
        text = "\n".join(str(result.results[name]).strip() for name in self._last(result))
        if self._display.said.strip() != text:
            await self._display.begin_message()
            await self._output.text(text)

    def _last(self, result: Any) -> list[str]:
        """Return the ids of the nodes whose results are the answer: those that none follows."""
        order = getattr(result, "execution_order", None) or getattr(result, "node_history", [])
        names = [each.node_id for each in order]
        followed = {each.from_node.node_id for each in getattr(self._graph, "edges", ())}
        ends = [name for name in dict.fromkeys(names) if name not in followed]
        chosen = ends if followed and ends else names[-1:]
        return [name for name in chosen if name in result.results]
