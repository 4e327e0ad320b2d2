"""One turn of a graph or a swarm of Strands: its state is kept after every node."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.types.session import decode_bytes_values

from parley.agent.turn import Turn
from parley.integrations.strands.contents import prompt_of, written
from parley.integrations.strands.event_display import StrandsDisplay
from parley.integrations.strands.interrupts import CurrentRun, RunOver, unanswered
from parley.integrations.task_values import TaskValue
from parley.llm.run_output import RunOutput

STEP = "strands-graph"


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
        self._run = CurrentRun(turn, thing, output.requests)
        self._nodes = TaskValue(turn, "urn:parley:strands:graph")
        self._is_live = False

    async def run(self) -> None:
        """Run until all nodes have ended, and show what the last ones said."""
        prompt: Any = await prompt_of(self._turn)
        if len(prompt) == 1 and "text" in prompt[0]:
            prompt = prompt[0]["text"]
        await self._finish(await self._run.steps(STEP, self._go, prompt))

    async def _go(self, prompt: Any, kept: dict[str, Any] | None) -> dict[str, Any]:
        number = 1 if kept is None else kept["number"] + 1
        if not self._is_live:
            self._is_live = True
            newest = await self._nodes.read()  # after a node, or else at the newest interrupt
            if newest is None or newest["number"] != number:
                newest = kept
            if newest is not None:
                self._graph.deserialize_state(decode_bytes_values(newest["state"]))
        result = await self._result(prompt, number)
        if result.status is not Status.INTERRUPTED:
            raise RunOver(result)
        interrupts = unanswered(result.interrupts)
        return {
            "number": number,
            "state": written(self._graph.serialize_state()),
            "interrupts": interrupts,
        }

    async def _result(self, prompt: Any, number: int) -> MultiAgentResult:
        result: MultiAgentResult | None = None
        async with aclosing(self._graph.stream_async(prompt, self._state)) as events:
            async for event in events:
                self._run.check()
                if isinstance(found := event.get("result"), MultiAgentResult):
                    result = found
                    continue
                await self._display.show(event)
                if event.get("type") == "multiagent_node_stop":
                    await self._nodes.write(
                        {"number": number, "state": written(self._graph.serialize_state())}
                    )
        assert result is not None
        return result

    async def _finish(self, result: MultiAgentResult) -> None:
        if result.status is Status.FAILED:
            for each in result.results.values():
                if isinstance(each.result, Exception):
                    raise each.result
            self._turn.fail("The run reached its limit of nodes, handoffs or time.")
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
