"""Skills of other agents as tools of a model: progress, questions, costs, parallel calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import parley
from parley import Agent, Turn
from parley.extensions import Usage
from parley.extensions.usage import Spent, spent_on
from parley.llm import AgentSkills, ModelUsage, ScriptedReply, TokenBudget, llm_agent
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio

shop = Agent("Shop", description="Sells flowers.")
RUNS: list[str] = []


@shop.skill
async def price(turn: Turn, flower: str, count: int = 1) -> dict[str, int]:
    """Tells the price of flowers."""
    RUNS.append(flower)
    await turn.working(f"looking at {flower}")
    await turn.artifact("a bill", metadata=Usage.says(Spent(tokens=11, cost=0.5)))
    return {"price": 3 * count}


@shop.skill
async def order(turn: Turn) -> str:
    """Orders flowers."""
    colour = await turn.ask(f"Which colour for {turn.text}?")
    return f"{colour.text} {turn.text}"


@shop.skill
async def where(turn: Turn) -> str:
    """Tells the context."""
    return turn.context_id


@shop.skill
async def purse(turn: Turn) -> dict[str, int]:
    """Tells what may be spent."""
    assert turn.budget is not None
    return {"tokens": turn.budget.tokens or 0}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with under_uvicorn(parley.asgi(shop)) as url:
        yield url


def made(endpoint, *tools, **options) -> Agent:
    return llm_agent("Helper", model="m", base_url=endpoint.url, tools=tools, **options)


async def test_skills_are_tools_with_their_schemas_and_cost_counts(endpoint, url) -> None:
    def script(request):
        if request.tool_results:
            return f"It costs {request.tool_results[0]}"
        return ScriptedReply(tool_calls=[("price", {"flower": "rose", "count": 4})])

    served = endpoint(script)
    async with parley.connect(made(served, url)) as remote:
        async with remote.stream("Four roses?") as stream:
            seen = [getattr(event, "status", None) async for event in stream]
        task = await remote.get(stream.task_id)
    said = [status.message.text for status in seen if status and status.message]
    assert task.text.startswith("It costs a bill")
    assert '{"price":12}' in task.text
    assert "looking at rose" in said
    tool, other, *_ = [each["function"] for each in served.requests[0].tools]
    assert tool["name"] == "price"
    assert tool["parameters"]["required"] == ["flower"]
    assert "a skill of the agent Shop" in tool["description"]
    assert other["parameters"]["required"] == ["message"]
    spent = spent_on(task)
    assert spent.cost == 0.5
    assert spent.tokens > 11


async def test_another_agent_may_spend_what_is_left(endpoint) -> None:
    def script(request):
        usage = ModelUsage(input_tokens=90, output_tokens=10)
        if request.tool_results:
            return ScriptedReply(text=request.tool_results[0], usage=usage)
        return ScriptedReply(tool_calls=[("purse", {"message": "?"})], usage=usage)

    agent = made(endpoint(script), shop, budget=TokenBudget(turn=5000))
    async with parley.connect(agent) as remote:
        assert (await remote.send("How much?")).text == '{"tokens":4900}'


async def test_an_agent_of_this_process_needs_no_address(endpoint) -> None:
    def script(request):
        return request.tool_results[0] if request.tool_results else ScriptedReply(
            tool_calls=[("price", {"flower": "rose"})]
        )  # fmt: skip

    served = endpoint(script)
    async with parley.connect(made(served, AgentSkills(shop, skills=["price"]))) as remote:
        assert '{"price":3}' in (await remote.send("A rose?")).text
    assert len(served.requests[0].tools) == 1


@pytest.mark.slow
async def test_an_agent_that_cannot_be_reached_is_left_out_and_the_model_told(
    endpoint, caplog
) -> None:
    served = endpoint(lambda request: "Sorry.")
    agent = made(served, "http://user:secret@127.0.0.1:9")
    async with parley.connect(agent) as remote:
        assert (await remote.send("A rose?")).text == "Sorry."
    [system, _] = served.requests[0].messages
    assert "127.0.0.1:9 are not available now" in system["content"]
    assert "secret" not in system["content"] + caplog.text
    assert not served.requests[0].tools


async def test_a_task_that_fails_is_a_result_with_an_error(endpoint) -> None:
    broken = Agent("Broken")

    @broken.skill(id="fail")
    async def fails(turn: Turn) -> str:
        """Fails."""
        turn.fail("the shop burnt down")

    def script(request):
        return request.tool_results[0] if request.tool_results else ScriptedReply(
            tool_calls=[("fail", {"message": "now"})]
        )  # fmt: skip

    async with parley.connect(made(endpoint(script), broken)) as remote:
        assert (await remote.send("Go")).text == "Error: the shop burnt down"


async def test_the_calls_of_a_context_share_a_context_of_the_other_agent(endpoint) -> None:
    def script(request):
        if len(request.tool_results) == 2:
            return " ".join(request.tool_results)
        return ScriptedReply(tool_calls=[("where", {"message": "?"})])

    async with parley.connect(made(endpoint(script), shop)) as remote:
        task = await remote.send("Where?")
        again = await remote.send("And now?", context_id=task.context_id)
        other = await remote.send("Elsewhere?")
    assert len(set(task.text.split() + again.text.split())) == 1
    assert not set(task.text.split()) & set(other.text.split())
