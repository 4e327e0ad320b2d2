"""The loop of a model and its tools.

``ModelLoop`` runs in any skill; ``llm_agent`` is an agent whose only skill runs one.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from parley.agent.agent import Agent
from parley.agent.tools.tool import (
    Tool,
    ToolSource,
    ToolsUnavailable,
    free_name,
    source_name,
    tool_name,
)
from parley.agent.turn import Turn
from parley.client.errors import ClientError
from parley.client.message import Sendable
from parley.engine.content import to_parts
from parley.engine.turn.attempt import Failed, Rejected
from parley.extensions.usage import RunProgress
from parley.llm.conversation import content_of
from parley.llm.model import Json, Model, ModelFailed, ReplyBroken, Script, ScriptedModel
from parley.llm.model_run import ModelRun, OutputType
from parley.llm.openai_model import URL_VARIABLES, OpenAIModel, named_endpoint
from parley.llm.run_output import BROKE_OFF, RunOutput, told_of
from parley.llm.token_budget import ModelRefused, Price, RunStopped, TokenBudget
from parley.llm.tool_calls import AskUser, ToolLike, agents_in, check_installed, sorted_out
from parley.model.errors import A2AError

log = logging.getLogger("parley.llm")

Instructions = str | Callable[[Turn], Any]
"""The first message to a model: text, or a function of the turn (``def`` or ``async def``)."""

MEMORY_TOKENS = 8000
"""The number of tokens of earlier exchanges a context remembers by default."""

MAX_ROUNDS = 12
"""The default limit of model requests in one run."""

UNAVAILABLE = (A2AError, ClientError, ToolsUnavailable, OSError, TimeoutError)
"""Errors of tools that cannot be opened."""


class ModelLoop:
    """A model with instructions and tools: ``answer = await loop.run(turn)`` in any skill.

    ``model`` is a name at the endpoint (``base_url``, ``api_key``: see ``OpenAIModel``), or a
    ``Model``. Without an endpoint ``script`` answers, a function of the request; without a script,
    a run fails and says what to configure.

    ``tools`` are functions, agents and their addresses, MCP servers, and ``Tool`` objects.
    ``ask_user`` gives the model a tool to ask the caller. ``takes`` are media types of files that
    the model accepts, such as ``image/*``; text files become text.

    ``output`` is the type of answers, which are then data parts. ``memory_tokens`` is approximately
    how much of earlier exchanges the context remembers, 0 for nothing. ``max_rounds`` is the limit
    of model requests in a run, ``max_reply_tokens`` the limit of a reply. ``budget`` is the limit
    of tokens, ``prices`` maps models to the price of a million tokens.

    Raises ``TypeError`` and ``ValueError`` for invalid options.
    """

    def __init__(
        self,
        model: str | Model = "",
        *,
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
    ) -> None:
        if max_rounds < 1 or memory_tokens < 0:
            raise ValueError("max_rounds must be 1 or more, memory_tokens 0 or more")
        if isinstance(takes, str):
            raise TypeError(f"takes must be a list of media types: write takes=[{takes!r}]")
        self.instructions = instructions
        self.tools = sorted_out(tools)
        if ask_user:
            self.tools.append(AskUser())
        self.takes = tuple(takes)
        self.output = None if output is None else OutputType(output)
        self.memory_tokens = memory_tokens
        self.max_rounds = max_rounds
        self.asks_for: Json = {"max_tokens": max_reply_tokens, "temperature": temperature}
        self.budget = budget or TokenBudget()
        self.prices = dict(prices or {})
        self._model = None if isinstance(model, str) else model
        self._name = model if isinstance(model, str) else ""
        self._endpoint: dict[str, Any] = {
            "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout,
            "retries": retries,
        }
        self._script = script
        if base_url:
            self._model = OpenAIModel(self._name, **self._endpoint)

    @property
    def name(self) -> str:
        """The name of the model, if it is known."""
        return self._name or str(getattr(self._model, "name", ""))

    @property
    def model(self) -> Model:
        """The model. The first use chooses it, and logs if it is a script.

        Raises ``ModelFailed`` if there is neither an endpoint nor a script.
        """
        if self._model is None:
            if named_endpoint():
                self._model = OpenAIModel(self._name, **self._endpoint)
            elif self._script is not None:
                log.warning(
                    "no endpoint of a model is configured (%s): a script answers instead of %s",
                    URL_VARIABLES[0],
                    self._name or "a model",
                )
                self._model = ScriptedModel(self._script)
            else:
                raise ModelFailed(
                    f"no endpoint of a model is configured: set {URL_VARIABLES[0]}, such as "
                    "http://localhost:11434/v1 for Ollama, or give base_url=, or a script="
                )
        return self._model

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Model]:
        """Keep the model's connections open; runs within the block share them."""
        model: Any = self.model
        if hasattr(model, "__aenter__"):
            async with model:
                yield model
        else:
            yield model

    async def run(
        self, turn: Turn, message: Sendable | None = None, *, key: str = "llm", writes: bool = True
    ) -> Any:
        """Run until the model answers, and return the answer: text, or a value of ``output``.

        ``message`` is the message to the model, by default the caller's message. The answer is
        streamed as the artifact ``answer``, a value is the artifact ``result``; with
        ``writes=False`` it is only returned. ``key`` identifies the run in the turn, and its
        conversation in the context.

        Raises ``RunStopped`` (``BudgetExceeded``, ``ModelRefused``), whose text is for callers, and
        ``ModelFailed``, whose text is for operators. A file that the model does not accept ends the
        task as REJECTED.
        """
        parts = turn.parts if message is None else to_parts(message)
        content = await content_of(turn, parts, self.takes)
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(self.opened())
            output = await stack.enter_async_context(RunOutput(turn))
            try:
                tools, notes = await self._opened_tools(turn, stack, key)
                run = ModelRun(self, output, key, model, tools, writes=writes)
                return await run.answer(await self._instructed(turn, notes), content)
            except (ModelFailed, RunStopped) as error:
                error.metadata = output.requests.said()
                raise

    async def _instructed(self, turn: Turn, notes: list[str]) -> str:
        said = self.instructions
        if callable(said):
            said = said(turn)
            if inspect.isawaitable(said):
                said = await said
        words = [str(said), *notes]
        if self.output is not None:
            words.append(self.output.instructions)
        return "\n\n".join(filter(None, words))

    async def _opened_tools(
        self, turn: Turn, stack: AsyncExitStack, key: str
    ) -> tuple[dict[str, Tool], list[str]]:
        """Open the tools of a turn. An unreachable source is left out, with a note to the model."""
        notes: list[str] = []

        async def tools_of(each: Tool | ToolSource) -> list[Tool]:
            if not isinstance(each, ToolSource):
                return [each]
            try:
                return list(await stack.enter_async_context(each.open_tools(turn)))
            except UNAVAILABLE as error:
                name = source_name(each)
                turn.log.warning("the tools of %s are not available: %s", name, error)
                notes.append(f"The tools of {name} are not available now; say so if they matter.")
                return []

        opened = [await tools_of(each) for each in self.tools]
        return await self._named(turn, opened, key), notes

    async def _named(
        self, turn: Turn, opened: Sequence[Sequence[Tool]], key: str
    ) -> dict[str, Tool]:
        """Return the tools by their names. The author's own tools are named before tools of
        sources.

        Names are equal in all attempts: if a source is unreachable in a later attempt, its calls
        must not go to another source with a tool of the same name.
        """
        is_source = [isinstance(each, ToolSource) for each in self.tools]
        placed = [
            (place, tool, name, f"{place}/{name}/{number}")
            for place, tools in enumerate(opened)
            for number, name, tool in _counted(tools)
        ]

        async def chosen(known: Mapping[str, str]) -> dict[str, str]:
            names, taken = dict(known), set(known.values())
            for _, _, name, label in sorted(placed, key=lambda each: is_source[each[0]]):
                if label not in names:
                    names[label] = free_name(name, taken)
                    taken.add(names[label])
            return names

        known: Mapping[str, str] = {}
        if sum(is_source) > 1:
            known = await turn.step(f"{key}:names", chosen, {})
        names = await chosen(known)
        return {names[label]: tool for _, tool, _, label in placed}


def _counted(tools: Sequence[Tool]) -> Iterator[tuple[int, str, Tool]]:
    """Yield tools with their names for models, and how many earlier tools have the same name."""
    seen: Counter[str] = Counter()
    for tool in tools:
        name = tool_name(tool.name)
        yield seen[name], name, tool
        seen[name] += 1


READ_MODES = ("text/plain", "application/json", "text/*")
"""The input modes of every model: text, data, and text files."""


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

    ``description``, ``skill_id``, ``tags`` and ``examples`` describe its skill, ``options`` are
    options of ``Agent``; the others are options of ``ModelLoop``. The task fails with a reason if
    the model cannot be reached, or a budget is exhausted.

    Raises ``TypeError`` and ``ValueError`` for invalid options.
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

    An error ends the task as FAILED, a refusal of the model as REJECTED, with the reason.
    """
    try:
        return await loop.run(turn)
    except RunStopped as error:
        kind: type[Failed | Rejected] = Rejected if isinstance(error, ModelRefused) else Failed
        failure, metadata = kind(str(error)), error.metadata
    except ModelFailed as error:
        turn.log.error("the model %r failed: %s", loop.name, error)
        told = BROKE_OFF if isinstance(error, ReplyBroken) else told_of(error.status)
        failure, metadata = Failed(told), error.metadata
    failure.metadata = metadata
    raise failure
