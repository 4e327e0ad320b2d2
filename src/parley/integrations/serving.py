"""The driver of the adapters: an agent of a framework as a Parley agent.

Runs, their steps and questions, errors, descriptions, remembered calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.extensions.declared import SkillSchema, SkillSchemas
from parley.extensions.usage import RunProgress
from parley.llm.run_output import (
    BROKE_OFF,
    MAX_CUT,
    MAX_MODEL_CALLS,
    ModelRequests,
    RunOutput,
    causes,
)
from parley.model.cards import AgentExtension
from parley.model.distribution import install_command
from parley.model.errors import A2AError
from parley.model.extensions import Extension
from parley.model.struct import valid_text

Run = Callable[[Turn, RunOutput], Awaitable[object]]
"""Runs the framework for one turn, and returns the result of a skill.

A run that returns ``None`` has shown its answer.
"""

Told = tuple[type[BaseException], str, str]
"""Errors of a framework: their class, words of their text, and the sentence for callers.

``{}`` in the sentence is the text of the error.
"""

CUT_SECONDS = 2.0
"""The pause before a reply that broke off is asked for again; it grows by this."""

MAX_TOOLS = 30
"""How many tools a description names."""

CUT = "model-reply-cut"
"""Begins the keys of these pauses in a task."""


def framework_agent(
    run: Run,
    *,
    name: str,
    description: str = "",
    skill_id: str = "run",
    skill_name: str = "",
    tags: Iterable[str] = (),
    examples: Iterable[str] = (),
    input_modes: Iterable[str] = (),
    output_modes: Iterable[str] = ("text/plain", "application/json"),
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    extensions: Iterable[Extension | AgentExtension] = (),
    max_model_calls: int | None = MAX_MODEL_CALLS,
    told: Iterable[Told] = (),
    **options: Any,
) -> Agent:
    """Return an agent with one skill, which runs a framework for each turn.

    The skill is durable before the framework runs. What the run shows through its ``RunOutput`` is
    streamed; the turn is ``current_turn`` meanwhile. The card has ``input_schema`` and
    ``output_schema``, JSON Schemas of data in messages and results. ``max_model_calls`` is how many
    requests to models a turn makes at most, ``None`` for any number. ``told`` has the sentences for
    callers about errors of the framework; failures of models are told without it. ``options`` are
    options of ``Agent``.

    A run that asked a model and has no answer ends as FAILED or REJECTED with the reason. A reply
    of the model that broke off is asked for again, as after a crash.

    Raises ``ValueError`` for an invalid option.
    """
    if max_model_calls is not None and max_model_calls < 1:
        raise ValueError("max_model_calls is 1 or more, or None for any number")
    extensions = (RunProgress(), *extensions)
    if input_schema or output_schema:
        schema = SkillSchema(
            input=dict(input_schema) if input_schema else None,
            output=dict(output_schema) if output_schema else None,
        )
        extensions = (*extensions, SkillSchemas.of_skills({skill_id: schema}))
    agent = Agent(
        name, description=description, output_modes=output_modes, extensions=extensions, **options
    )

    async def serve(turn: Turn) -> object:
        requests, result = ModelRequests(turn, most=max_model_calls), None
        async with RunOutput(turn, requests=requests) as output:
            try:
                result = await run(turn, output)
            except BaseException as error:
                if not requests.is_cut or isinstance(error, asyncio.CancelledError):
                    if isinstance(error, Exception) and not isinstance(error, A2AError):
                        reason = _told_of(error, told)
                        requests.check_whole()
                        fail_with(turn, reason or requests.failure(error), error)
                    raise
            if requests.is_cut:
                await _ask_again(turn)
            if result is None:
                requests.check_said()
        return result

    agent.skill(
        id=skill_id,
        name=skill_name or name,
        description=description or name,
        tags=tuple(tags) or ("agent",),
        examples=examples,
        input_modes=input_modes,
        replies="task",
        default=True,
    )(serve)
    return agent


def _told_of(error: Exception, told: Iterable[Told]) -> str:
    """Return the sentence about an error, a cause of it, or a member of its group."""
    for each in causes(error):
        for kind, words, sentence in told:
            if isinstance(each, kind) and words in str(each):
                return sentence.format(each)
    return ""


async def _ask_again(turn: Turn) -> None:
    """Let the turn run again after a pause: a reply of its model broke off."""
    begun = [key for key in turn._attempt.results or {} if key.startswith(f"sleep:{CUT}")]
    if len(begun) == MAX_CUT:
        turn.fail(BROKE_OFF)
    times = len(begun) + 1
    await turn.sleep(CUT_SECONDS * times, key=f"{CUT}:{times}")


class RunOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__("the run is over")


class SteppedRun(Protocol):
    """A run that asks in between: its state there is a step of the task."""

    async def begin(self, given: Any, kept: Any, number: int) -> Any:
        """Continue the run in this attempt from the state of its last step, ``None`` for none.

        ``given`` are the answers, or else the input of the run. Returns the argument of ``go``.
        """
        ...

    async def go(self, given: Any, number: int) -> Any:
        """Run until something is asked, and return the state. Raises ``RunOver`` at the end."""
        ...

    async def answers(self, kept: Any, number: int) -> Any:
        """Return the answers to the questions of a state."""
        ...


async def result_of_steps(turn: Turn, name: str, run: SteppedRun, given: Any = None) -> Any:
    """Return the result of a run. It begins in an attempt that does not find a step."""
    number, kept, is_live = 0, None, False

    async def step() -> Any:
        nonlocal is_live
        started = given if is_live else await run.begin(given, kept, number)
        is_live = True
        return await run.go(started, number)

    while True:
        number += 1
        try:
            kept = await turn.step(f"{name}:{number}", step)
        except RunOver as over:
            return over.result
        given = await run.answers(kept, number)


def described(said: str | None, name: str, tools: Iterable[tuple[str, object]]) -> str:
    """Return the description of an agent: what it says of itself, or its name, and its tools.

    Of what a tool says the first line is shown.
    """
    lines = [(tool, str(text or "").strip().partition("\n")[0]) for tool, text in tools]
    named = [f"{tool} ({line})" if line else tool for tool, line in lines]
    shown = "; ".join([*named[:MAX_TOOLS], *(["…"] if len(named) > MAX_TOOLS else [])])
    return f"{said or f'The agent {name}.'}{f' Tools: {shown}.' if shown else ''}"


def fail_with(turn: Turn, reason: str, error: BaseException) -> None:
    """End the turn as FAILED with a reason that callers may know, if there is one.

    The log has the error.
    """
    if reason:
        turn.log.warning("the run failed: %s", error, exc_info=error)
        turn.fail(reason)


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error that says how to install a framework."""
    return ImportError(
        f"{extra} is not installed (no module {error.name!r}): {install_command(extra)}"
    )


MAX_REMEMBERED_BYTES = 1 << 20
"""The most bytes of one reply or result that are remembered; a longer one is made again."""


class CallKeys:
    """Names calls by what they are asked, and by how often that was asked before in the run.

    It may be used from several threads.
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def key(self, kind: str, asked: object) -> str:
        """Return the key of the next call of a kind that is asked this.

        What is no JSON counts as its text.
        """
        said = msgspec.json.encode(asked, enc_hook=str, order="deterministic")
        name = f"{kind}:{hashlib.sha256(said).hexdigest()[:24]}"
        with self._lock:
            self._times[name] += 1
            return f"{name}:{self._times[name]}"


class RememberedCalls:
    """Calls of models and tools in a run, remembered in the log of the turn's task.

    A call is known by its request and by the number of equal requests before it in the run.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._keys = CallKeys()

    async def once(
        self, kind: str, asked: object, function: Callable[[], Awaitable[dict[str, Any] | None]]
    ) -> dict[str, Any] | None:
        """Return what the function returned in an earlier attempt, else call it.

        ``None`` says that the call was made, now or then, and that its result is not remembered.
        """

        async def bounded() -> Any:
            return remembered(await function())

        kept: dict[str, Any] | None = await self._turn.step(self._keys.key(kind, asked), bounded)
        return kept

    def recall(self, kind: str, asked: object) -> tuple[str, Any]:
        """Return the key of the next call, and its result: ``UNSET`` for a call not made yet."""
        key = self._keys.key(kind, asked)
        found = self._turn._attempt.step_result(key)
        return key, msgspec.UNSET if found is None else msgspec.json.decode(found)

    async def keep(self, key: str, result: Any) -> None:
        """Remember the result of a call that ``recall`` did not find."""
        await self._turn._attempt.keep_result(key, msgspec.json.encode(remembered(result)))


def remembered(value: Any) -> Any:
    """Return a value as the JSON that a step keeps, ``None`` for one that is too long."""
    written = msgspec.json.encode(valid_text(value))
    return msgspec.json.decode(written) if len(written) <= MAX_REMEMBERED_BYTES else None


def json_value(result: Any) -> dict[str, Any] | None:
    """Return the result of a tool as ``{"value": ...}``, ``None`` if it has no JSON form."""
    try:
        return {"value": msgspec.json.decode(msgspec.json.encode(result))}
    except (TypeError, ValueError):
        return None
