"""The driver of the adapters: an agent of a framework as a Parley agent.

Runs, their steps and questions, errors, descriptions, remembered calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from parley.agent.agent import Agent
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.extensions.declared import SkillSchema, SkillSchemas
from parley.extensions.usage import RunProgress
from parley.integrations.conversations import TaskValue
from parley.llm.model import Json
from parley.llm.remote_skills import RemoteSkill
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
"""An error of a framework: its class, a substring of its text, and the sentence for callers.

``{}`` in the sentence is replaced by the text of the error.
"""

CUT_SECONDS = 2.0
"""The pause before an interrupted reply is requested again, in seconds; it grows by this."""

MAX_TOOLS = 30
"""The number of tools a description names."""

CUT = "model-reply-cut"
"""The prefix of the keys of these pauses in a task."""


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

    The skill's task is durable before the framework runs. Output through its ``RunOutput`` is
    streamed; ``current_turn`` is the turn meanwhile. The card has ``input_schema`` and
    ``output_schema``, JSON Schemas of data in messages and results. ``max_model_calls`` is the
    limit of model requests in a turn, ``None`` for no limit. ``told`` has the sentences for callers
    about errors of the framework; failures of models have their own. ``options`` are options of
    ``Agent``.

    A run that called a model and has no answer ends as FAILED or REJECTED with the reason. An
    interrupted reply of the model is requested again, as after a crash.

    Raises ``ValueError`` for an invalid option.
    """
    if max_model_calls is not None and max_model_calls < 1:
        raise ValueError("max_model_calls must be 1 or more, or None for no limit")
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
    """Return the sentence for an error, for its cause, or for a member of its group."""
    for each in causes(error):
        for kind, words, sentence in told:
            if isinstance(each, kind) and words in str(each):
                return sentence.format(each)
    return ""


async def _ask_again(turn: Turn) -> None:
    """Run the turn again after a pause: a reply of its model was interrupted."""
    begun = [key for key in turn._attempt.results or {} if key.startswith(f"sleep:{CUT}")]
    if len(begun) == MAX_CUT:
        turn.fail(BROKE_OFF)
    times = len(begun) + 1
    await turn.sleep(CUT_SECONDS * times, key=f"{CUT}:{times}")


COUNTED = ("number", "round", "pauses")
"""The keys for the number of questions in a state; the last two were written by older versions."""


class RunOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__("the run is over")


class FrameworkRun:
    """The run of a framework in a turn, for frameworks whose state is JSON.

    At each question, and at each call of ``keep``, its state is kept until the task ends, replacing
    the previous state. So after an answer or a crash, or on another replica, it continues from
    there. ``kept`` is the newest state, ``number`` the number of questions so far, ``results`` the
    results of remote calls for which the run was suspended, by call id. ``current_run`` finds the
    run in tools and models.
    """

    name = ""
    """The name of the state in the context, and the prefix of the keys of questions and calls."""

    def __init__(self, output: RunOutput) -> None:
        self.output, self.turn, self.requests = output, output.turn, output.requests
        self.results: dict[str, ToolResult] = {}
        self.kept: Json | None = None
        self.number = 0
        self._state = TaskValue(self.turn, self.name)
        self._keys = CallKeys()
        output.run = self

    async def begin(self, given: Any) -> Any:
        """Load ``kept``, once in an attempt. Without a state return the first argument of ``go``.

        ``given`` is the input of the run.
        """
        raise NotImplementedError

    async def go(self, given: Any) -> Json:
        """Run until a question, and return the state. Raises ``RunOver`` at the end."""
        raise NotImplementedError

    async def answers(self, kept: Json) -> Any:
        """Return the answers to the questions of a state, as the argument of ``go``."""
        raise NotImplementedError

    async def result(self, given: Any = None) -> Any:
        """Run until the end, and return the result. The caller answers questions."""
        self.kept = await self._state.read()
        given = await self.begin(given)
        try:
            while True:
                if self.kept is not None:
                    found = (self.kept.get(each) for each in COUNTED)
                    self.number = next((each for each in found if each is not None), 0)
                    given = await self.answers(self.kept)
                state = await self.go(given)
                self.number += 1
                await self.keep(state)
        except RunOver as over:
            return over.result

    async def keep(self, state: Json) -> None:
        """Keep a state until the task ends; it is durable before this returns."""
        self.kept = {**state, "number": self.number}
        await self._state.write(self.kept)

    def call_key(self, said: str) -> str:
        """Return the key of a call, by its text and number of occurrences: equal in a re-run."""
        return self._keys.key(f"{self.name}:{self.number}", said)

    async def call(self, skill: Any, tool: str, arguments: Any, call_id: str) -> ToolResult:
        """Call a remote skill for which the run is suspended; record and return the result."""
        if not isinstance(skill, RemoteSkill):
            raise LookupError(f"the tool {tool!r} of a waiting call is not a remote skill now")
        key = f"{self.name}:{self.number}:{call_id}"
        result = self.results[call_id] = await skill.call(arguments, key=key)
        return result


def described(said: str | None, name: str, tools: Iterable[tuple[str, object]]) -> str:
    """Return the description of an agent: its own text, or its name, and its tools.

    Of a tool's description the first line is shown.
    """
    lines = [(tool, str(text or "").strip().partition("\n")[0]) for tool, text in tools]
    named = [f"{tool} ({line})" if line else tool for tool, line in lines]
    shown = "; ".join([*named[:MAX_TOOLS], *(["…"] if len(named) > MAX_TOOLS else [])])
    return f"{said or f'The agent {name}.'}{f' Tools: {shown}.' if shown else ''}"


def fail_with(turn: Turn, reason: str, error: BaseException) -> None:
    """End the turn as FAILED with a reason that callers may see, if there is one.

    The log has the error.
    """
    if reason:
        turn.log.warning("the run failed: %s", error, exc_info=error)
        turn.fail(reason)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import a framework within this block.

    Raises ``ImportError`` with installation advice.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "parley":
            raise
        command = install_command(extra)
        raise ImportError(
            f"{extra} is not installed (no module {error.name!r}): {command}"
        ) from error


MAX_REMEMBERED_BYTES = 1 << 20
"""The size limit of a remembered reply or result, in bytes; a longer one is not remembered."""


class CallKeys:
    """Identifies calls by their requests, and by the number of equal requests before in the run.

    It may be used from several threads.
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def key(self, kind: str, asked: object) -> str:
        """Return the key of the next call of a kind with this request.

        Values that are not JSON are represented by their text.
        """
        said = msgspec.json.encode(asked, enc_hook=str, order="deterministic")
        name = f"{kind}:{hashlib.sha256(said).hexdigest()[:24]}"
        with self._lock:
            self._times[name] += 1
            return f"{name}:{self._times[name]}"


class RememberedCalls:
    """Calls of models and tools in a run, remembered in the log of the turn's task.

    A call is identified by its request and by the number of equal requests before it in the run.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._keys = CallKeys()

    def recall(self, kind: str, asked: object) -> tuple[str, Any]:
        """Return the key of the next call, and its result: ``UNSET`` for a call not made yet."""
        key = self._keys.key(kind, asked)
        found = self._turn._attempt.step_result(key)
        return key, msgspec.UNSET if found is None else msgspec.json.decode(found)

    async def keep(self, key: str, result: Any) -> None:
        """Remember the result of a call that ``recall`` did not find."""
        await self._turn._attempt.keep_result(key, msgspec.json.encode(remembered(result)))


def remembered(value: Any) -> Any:
    """Return a value as JSON for a step, ``None`` for a value that is too long."""
    written = msgspec.json.encode(valid_text(value))
    return msgspec.json.decode(written) if len(written) <= MAX_REMEMBERED_BYTES else None


def json_value(result: Any) -> Json | None:
    """Return the result of a tool as ``{"value": ...}``, ``None`` if it has no JSON form."""
    try:
        return {"value": msgspec.json.decode(msgspec.json.encode(result))}
    except (TypeError, ValueError):
        return None
