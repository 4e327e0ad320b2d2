"""``llm_agent``: an agent whose one skill is a model with its tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.engine.turn.attempt import Failed, Rejected
from parley.extensions.usage import RunProgress
from parley.llm.model import Model, ModelFailed, ReplyBroken
from parley.llm.model_failures import BROKE_OFF, told_of
from parley.llm.model_loop import MAX_ROUNDS, MEMORY_TOKENS, Instructions, ModelLoop
from parley.llm.scripted import Script
from parley.llm.token_budget import ModelRefused, Price, RunStopped, TokenBudget
from parley.llm.tool_sources import ToolLike, agents_in, check_installed

READ_MODES = ("text/plain", "application/json", "text/*")
"""What every model takes: text, data, and text files."""


def llm_agent(
    name: str,
    *,
    model: str | Model = "",
    instructions: Instructions = "",
    tools: Iterable[ToolLike] = (),
    output: Any = None,
    ask_user: bool = False,
    takes: Iterable[str] = (),
    memory_tokens: int = MEMORY_TOKENS,
    max_rounds: int = MAX_ROUNDS,
    max_reply_tokens: int | None = None,
    temperature: float | None = None,
    budget: TokenBudget | None = None,
    prices: Mapping[str, Price] | None = None,
    base_url: str = "",
    api_key: str = "",
    timeout: float = 120.0,
    retries: int = 3,
    script: Script | None = None,
    description: str = "",
    skill_id: str = "answer",
    tags: Iterable[str] = (),
    examples: Iterable[str] = (),
    lifespan: Callable[[Agent], AbstractAsyncContextManager[Any]] | None = None,
    **options: Any,
) -> Agent:
    """Return an agent that a language model answers, with tools.

        agent = llm_agent("Helper", model="qwen3:8b", tools=[a_function, "https://other-agent"])

    ``description``, ``skill_id``, ``tags`` and ``examples`` are those of its skill, ``options``
    those of ``Agent``; the others are those of ``ModelLoop``. The task fails with a reason if the
    model cannot be asked, or a budget is used up.

    Raises ``TypeError`` and ``ValueError`` for what cannot be.
    """
    loop = ModelLoop(
        model,
        instructions=instructions,
        tools=tools,
        output=output,
        ask_user=ask_user,
        takes=takes,
        memory_tokens=memory_tokens,
        max_rounds=max_rounds,
        max_reply_tokens=max_reply_tokens,
        temperature=temperature,
        budget=budget,
        prices=prices,
        base_url=base_url,
        api_key=api_key,
        timeout=timeout,
        retries=retries,
        script=script,
    )

    @asynccontextmanager
    async def connected(agent: Agent) -> AsyncIterator[Any]:
        """Keep the model's connections open while the agent is served."""
        check_installed(loop.tools)
        async with loop.opened():
            if lifespan is None:
                yield None
                return
            async with lifespan(agent) as state:
                yield state

    uses = list(options.pop("uses", ()))
    uses += [each for each in agents_in(loop.tools) if not any(each is other for other in uses)]
    declared = [RunProgress(), *options.pop("extensions", ())]
    modes = tuple(options.pop("input_modes", ())) or (*READ_MODES, *loop.takes)
    options.setdefault(
        "output_modes", ("text/plain",) if output is None else ("application/json", "text/plain")
    )
    agent = Agent(
        name,
        description=description,
        input_modes=modes,
        uses=uses,
        extensions=declared,
        lifespan=connected,
        **options,
    )

    async def answer(turn: Turn) -> Any:
        await answered(loop, turn)

    answer.__annotations__["return"] = None if output is None else output | None
    agent.skill(
        id=skill_id,
        name=name,
        description=description or f"Answers as {name}.",
        tags=tuple(tags) or ("assistant",),
        examples=examples,
        replies="task",
        default=True,
    )(answer)
    return agent


async def answered(loop: ModelLoop, turn: Turn) -> Any:
    """Run a loop and return its answer.

    What stops it ends the task as FAILED, a refusal of the model as REJECTED, with the reason.
    """
    failure: Failed | Rejected
    try:
        return await loop.run(turn)
    except ModelRefused as error:
        failure, metadata = Rejected(str(error)), error.metadata
    except RunStopped as error:
        failure, metadata = Failed(str(error)), error.metadata
    except ModelFailed as error:
        turn.log.error("the model %r could not be asked: %s", loop.name, error)
        told = BROKE_OFF if isinstance(error, ReplyBroken) else told_of(error.status)
        failure, metadata = Failed(told), error.metadata
    failure.metadata = metadata
    raise failure
