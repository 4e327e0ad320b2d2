"""A remote agent as an agent of Strands: a node of a graph, or called like any agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from strands.agent.agent_result import AgentResult
from strands.agent.base import AgentBase
from strands.telemetry.metrics import EventLoopMetrics

from parley.agent.remote.callees import Callee
from parley.host.connecting import connect
from parley.integrations.remote_answers import answer_of
from parley.integrations.strands.interrupts import current_run
from parley.llm.remote_skills import result_of
from parley.model.cards import AgentCard


async def sub_agent(agent: Callee, **options: Any) -> RemoteNode:
    """Return a remote agent as an agent of Strands, with the name and description of its card.

    Use it as a node of a graph. Within a turn that ``strands.agent`` serves, its questions reach
    the turn's caller; elsewhere a question raises ``RemoteQuestion``.

    ``options`` are those of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        return RemoteNode(agent, remote.card, options)


class RemoteNode(AgentBase):  # type: ignore[misc]
    """A remote agent. Each call is a message to it; it remembers what its own context has."""

    def __init__(self, agent: Callee, card: AgentCard, options: Mapping[str, Any]) -> None:
        self.name = card.name
        self.description = card.description
        self._agent = agent
        self._options = dict(options)

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse: a remote agent is asked asynchronously. Raises ``RuntimeError``."""
        raise RuntimeError("await remote.invoke_async(...): a remote agent is not called in a loop")

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Ask the remote agent, and return its answer."""
        result: AgentResult | None = None
        async for event in self.stream_async(prompt, **kwargs):
            result = event.get("result", result)
        assert result is not None
        return result

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the text of the answer as it comes, and the result at the end."""
        said, run = _text(prompt), current_run()
        key, streamed = "" if run is None else run.call_key(said), ""
        async with aclosing(answer_of(self._agent, self._options, said, key=key)) as heard:
            async for each in heard:
                if isinstance(each, str):
                    streamed += each
                    yield {"data": each}
                else:
                    result = result_of(each)
        if not streamed:
            yield {"data": result.text}
        if result.is_error:
            raise RuntimeError(f"{self.name}: {result.text}")
        yield {
            "result": AgentResult(
                stop_reason="end_turn",
                message={"role": "assistant", "content": [{"text": result.text}]},
                metrics=EventLoopMetrics(),
                state={},
            )
        }


def _text(prompt: Any) -> str:
    """Return what a prompt says: a string, content blocks, or the last of some messages."""
    if isinstance(prompt, str):
        return prompt
    blocks = list(prompt or ())
    if blocks and isinstance(blocks[-1], dict) and "content" in blocks[-1]:
        blocks = blocks[-1]["content"]
    return "\n".join(each["text"] for each in blocks if isinstance(each, dict) and "text" in each)
