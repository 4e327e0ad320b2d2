"""Runs of models and frameworks in a turn: model requests, their failures, the shown output.

``ModelRequests`` counts requests and records how replies end, ``model_failure`` returns failure
texts for callers, ``RunOutput`` shows the answer as an artifact and everything else as progress.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import msgspec

from parley.agent.artifact_stream import ArtifactStream
from parley.agent.turn import Turn
from parley.engine.turn.attempt import Failed, Rejected, TurnOver
from parley.extensions.usage import RUN_PROGRESS, USAGE, Spent
from parley.llm.current_turn import within
from parley.llm.model import Json, ModelUsage
from parley.model.parts import Part

MAX_MODEL_CALLS = 100
"""The default limit of model requests in a turn."""

MAX_CUT = 3
"""How often in a task an interrupted reply is requested again."""

REFUSES = "The language model refuses: {}"
FILTERED = "A content filter of the language model stopped the answer."
SHORTENED = "The language model's reply reached its maximum length, and is empty."
NOTHING = "The language model's answer was empty."

REQUEST = "parley:model:"
"""The prefix of the keys of requests in a task's log. The turn and request numbers follow."""

LENGTH = "length"
CONTENT_FILTER = "content_filter"

_ENDINGS = {
    LENGTH: {"length", "max_tokens", "max_output_tokens", "model_length"},
    CONTENT_FILTER: {
        "content_filter", "content_filtered", "guardrail_intervened", "safety", "image_safety",
        "recitation", "prohibited_content", "blocklist", "spii",
    },
}  # fmt: skip

R = TypeVar("R")
S = TypeVar("S", ModelUsage, Spent)


class ReplyCut(BaseException):
    """A reply of a model was interrupted. No ``except Exception`` of a framework catches it."""


class ModelRequests:
    """The model requests of a task.

    ``usage`` is the usage of all requests in the task's log, so a further attempt counts none
    twice. ``spent`` is the cost of tools and other agents. ``ending`` is how the newest reply
    ended: ``length``, ``content_filter``, ``stop`` or empty. ``has_said``: the run has shown a part
    of its answer. ``failures`` are the newest errors of requests.
    """

    def __init__(self, turn: Turn, *, most: int | None = None) -> None:
        self.usage = ModelUsage()
        self.spent = Spent()
        self.ending = ""
        self.has_said = False
        self.is_cut = False
        self.failures: deque[BaseException] = deque(maxlen=MAX_CAUSES)
        self._turn = turn
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._said: dict[str, tuple[ModelUsage, Spent]] = {}
        self._prefix = f"{REQUEST}{turn._attempt.turn}:"
        self._number = 0
        for key, value in (turn._attempt.results or {}).items():
            if key.startswith(REQUEST):
                self.usage += msgspec.json.decode(value, type=ModelUsage)
                self._number += key.startswith(self._prefix)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Record an error of a request. Other errors of the run are not failures of the model."""
        try:
            yield
        except Exception as error:
            self.failures.append(error)
            raise

    def failure(self, error: BaseException) -> str:
        """Return the sentence for callers about an error that a failed request caused, or ""."""
        return model_failure(error, self.failures)

    def count(self, usage: ModelUsage, *, ending: str = "") -> None:
        """Add a request whose usage is elsewhere in the task's log."""
        self.usage += usage
        self.ending = _ending_of(ending)

    def replied(
        self, usage: ModelUsage | None, *, ending: str | None = None, refusal: str = ""
    ) -> None:
        """Log the usage of a request, and record how its reply ended.

        ``usage`` may cover several requests. ``ending`` is the finish reason as the framework or
        the model names it, ``None`` if the framework does not report it. A reply that ends without
        a finish reason raises ``ReplyCut``. A refusal ends the task as REJECTED with its text.
        Requests beyond the turn's limit end it as FAILED.

        Threads may call it as well. It does not block there: the event loop may wait for the
        thread.
        """
        usage = usage or ModelUsage()
        usage = msgspec.structs.replace(usage, requests=usage.requests or 1)
        with self._lock:
            self._number += 1
            number = self._number
            self.usage += usage
        attempt = self._turn._attempt
        self._in_loop(lambda: attempt.log_result(f"{self._prefix}{number}", usage))
        if refusal:
            self._end(Rejected(REFUSES.format(refusal)))
        if ending == "":
            self.is_cut = True
            raise ReplyCut("the reply of the model ended without a finish reason")
        self.end_as(ending)
        if self._most is not None and number > self._most:
            self._end(
                Failed(
                    f"The agent called its model {self._most} times without an answer, which is "
                    "the limit of a turn (max_model_calls)."
                )
            )

    def _end(self, error: Rejected | Failed) -> NoReturn:
        self._in_loop(lambda: self._turn._attempt.end_with(error))
        raise error

    def _in_loop(self, call: Callable[[], object]) -> None:
        """Call a function on the event loop: now if it is the current loop, else soon."""

        def later() -> None:
            with suppress(TurnOver, Rejected, Failed):
                call()

        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            call()
        else:
            self._loop.call_soon_threadsafe(later)

    def end_as(self, ending: str | None) -> None:
        """Record how the newest reply ended, as the framework or the model names it."""
        self.ending = _ending_of(ending or "")

    def check_said(self) -> None:
        """End the task, with the reason, if the run called a model and has no answer."""
        if self.has_said:
            return
        self.check_whole()
        if self.usage.requests:
            self._turn.fail(NOTHING)

    def check_whole(self) -> None:
        """End the task if the run has no answer because the newest reply was truncated."""
        if self.has_said:
            return
        if self.ending == CONTENT_FILTER:
            self._turn.reject(FILTERED)
        if self.ending == LENGTH:
            self._turn.fail(SHORTENED)

    @property
    def total(self) -> Spent:
        """The cost of the run until now, with its tools and the agents that it called."""
        return self.usage.spent + self.spent

    def said(self, artifact: str = "") -> Json:
        """Return the metadata of an artifact, or of the last message: usage, and how it ended.

        The artifacts of a run together report its whole usage, without duplicates.
        """
        others = [each for name, each in self._said.items() if name != artifact]
        usage = _less(self.usage, [each for each, _ in others])
        spent = _less(self.spent, [each for _, each in others])
        self._said[artifact] = (usage, spent)
        progress: Json = {}
        if self.ending in (LENGTH, CONTENT_FILTER):
            progress["finishReason"] = self.ending
        found: Json = {}
        if usage.requests:
            total = usage.spent + spent
            cost = {"calls": total.calls, "tokens": total.tokens, "cost": total.cost}
            found[USAGE] = {key: value for key, value in cost.items() if value}
            progress["usage"] = {
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "requests": usage.requests,
            }
        return {**found, RUN_PROGRESS: progress} if progress else {}


def _ending_of(reason: str) -> str:
    said = reason.rpartition(".")[
        2
    ].lower()  # enumerations of some frameworks include the class name
    return next((ours for ours, theirs in _ENDINGS.items() if said in theirs), said and "stop")


def _less(whole: S, parts: list[S]) -> S:
    names = whole.__struct_fields__
    left = {
        name: getattr(whole, name) - sum(getattr(each, name) for each in parts) for name in names
    }
    return type(whole)(**left)


BROKE_OFF = "The reply of the language model was interrupted at each attempt; try again later."

MAX_CAUSES = 16
"""The number of errors examined: causes, and members of groups."""


def told_of(status: int, kind: str = "") -> str:
    """Return the sentence for callers about an HTTP status, 0 without a response.

    ``kind`` is the name of the error's class.
    """
    if status in (401, 403):
        return "The language model does not accept this agent's credentials."
    if status == 429 or "RateLimit" in kind or "Throttl" in kind:
        return "The language model is busy; try again later."
    if status >= 500:
        return f"The language model failed with status {status}; try again later."
    if status:
        return f"The language model rejected the request with status {status}."
    if "Timeout" in kind:
        return "The language model did not answer in time; try again later."
    return "The language model cannot be reached now; try again later."


def model_failure(error: BaseException, failures: Iterable[BaseException]) -> str:
    """Return the sentence for callers about an error of a run that a model request caused.

    ``failures`` are the errors of the run's requests: the error, its cause, or a member of its
    group is among them. Empty for other errors.
    """
    known = {id(each) for each in failures}
    failed = next((each for each in causes(error) if id(each) in known), None)
    if failed is None:
        return ""
    found = list(causes(failed))
    status = next((status for each in found if (status := _status(each))), 0)
    return told_of(status, " ".join(type(each).__name__ for each in found))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of groups among them."""
    todo: list[BaseException | None] = [error]
    for _ in range(MAX_CAUSES):
        if not todo:
            return
        each = todo.pop(0)
        if each is None:
            continue
        yield each
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        todo.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # an error of botocore
        response = response.get("ResponseMetadata", {})
        found = response.get("HTTPStatusCode")
    else:
        names = ("status_code", "status", "code")
        known = [getattr(each, name, None) for each in (error, response) for name in names]
        found = next((each for each in known if type(each) is int), None)
    return found if type(found) is int and 100 <= found < 600 else 0


THINKING_SECONDS = 0.1
"""The least interval between two updates of thinking."""

MAX_SHOWN = 4000
"""The number of characters of arguments and results of tools progress shows."""


_OUTPUT: ContextVar[RunOutput | None] = ContextVar("parley_run_output", default=None)


def current_requests() -> ModelRequests | None:
    """Return the requests of the current run, ``None`` outside a run."""
    output = _OUTPUT.get()
    return None if output is None else output.requests


def current_run(kind: type[R]) -> R | None:
    """Return the framework's current run, ``None`` outside a run of this kind."""
    run = getattr(_OUTPUT.get(), "run", None)
    return run if isinstance(run, kind) else None


class RunOutput:
    """Shows a run of a model or a framework in a turn; an async context manager.

    The text of the newest message is the artifact ``answer``: it is streamed, and begins anew when
    the model sends another message after a tool call. Thinking, tool calls and steps are status
    updates without a message, so they are streamed but are not in the task. ``requests`` has the
    usage of models, which the metadata of the answer reports. ``said`` is the newest message so
    far, ``called`` has the names of the called tools, by the ids of the calls. ``run`` is the
    adapter's own object for the run, also in a nested output of the turn: ``current_run`` finds it.
    """

    run: object = None

    def __init__(
        self, turn: Turn, *, artifact: str = "answer", requests: ModelRequests | None = None
    ) -> None:
        self.turn = turn
        self.requests = requests or ModelRequests(turn)
        self.said = ""
        self.called: dict[str, str] = {}
        self._name = artifact
        self._stream: ArtifactStream | None = None
        self._thoughts: list[str] = []
        self._thought_at = 0.0
        self._exits = ExitStack()

    async def __aenter__(self) -> Self:
        self._exits.enter_context(within(self.turn))
        outer = _OUTPUT.get()
        if outer is not None and outer.turn is self.turn:
            self.run = outer.run
        self._exits.callback(_OUTPUT.reset, _OUTPUT.set(self))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exits.close()
        if error is None:
            await self._show_thoughts()
        stream, self._stream = self._stream, None
        if stream is not None and error is None:
            await stream.close(metadata=self.requests.said(self._name))
        elif stream is not None:
            await stream.__aexit__(kind, error, traceback)
        ended = self.turn._attempt.ending or error
        if isinstance(ended, Failed | Rejected) and ended.metadata is None:
            ended.metadata = self.requests.said() or None

    # -- the answer ----------------------------------------------------------------------------

    async def text(self, delta: str) -> None:
        """Add to the answer."""
        if not delta:
            return
        await self._show_thoughts()
        self.requests.has_said = True
        self.said += delta
        if self._stream is None:
            self._stream = self.turn.stream(self._name, artifact_id=self._name)
            await self._stream.__aenter__()
        await self._stream.write(delta)

    async def new_message(self) -> None:
        """Let the next text replace the answer: the newest message was not the last."""
        self.said = ""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.close()

    async def whole(self, text: str) -> None:
        """Show the complete answer, unless it was streamed already."""
        if text.strip() not in ("", self.said.strip()):
            await self.new_message()
            await self.text(text)

    async def data(
        self, value: Any, *, schema: Mapping[str, Any] | None = None, name: str = "result"
    ) -> None:
        """Write structured output as an artifact with a data part; its metadata has the schema."""
        metadata = {} if schema is None else {"schema": dict(schema)}
        await self.new_message()
        part = Part(data=value, media_type="application/json")
        metadata |= self.requests.said(name)
        self.requests.has_said = True
        await self.turn.artifact(part, name=name, artifact_id=name, metadata=metadata)

    async def file(self, part: Part, *, name: str = "") -> None:
        """Write a file that the run made as an artifact."""
        self.requests.has_said = True
        await self.turn.artifact(part, name=name or part.filename)

    # -- progress ------------------------------------------------------------------------------

    async def thinking(self, delta: str) -> None:
        """Show thinking. It is progress: it is not kept when the task has ended."""
        self._thoughts.append(delta)
        now = asyncio.get_running_loop().time()
        if now - self._thought_at >= THINKING_SECONDS:
            self._thought_at = now
            await self._show_thoughts()

    async def tool_called(self, name: str, arguments: object, *, call_id: str = "") -> None:
        """Show that a tool is called. Earlier text of the model was not the answer."""
        await self._show_thoughts()
        await self.new_message()
        self.called[call_id] = name
        shown = {"kind": "toolCall", "id": call_id, "name": name, "arguments": _bounded(arguments)}
        await self.turn.working(metadata={RUN_PROGRESS: shown})

    async def tool_returned(
        self, name: str, result: object, *, call_id: str = "", is_error: bool = False
    ) -> None:
        """Show the result of a tool. Without a ``name`` the id identifies the call."""
        name = name or self.called.get(call_id, "tool")
        shown = {"kind": "toolResult", "id": call_id, "name": name, "result": _bounded(result)}
        if is_error:
            shown["isError"] = True
        await self.turn.working(metadata={RUN_PROGRESS: shown})

    async def step(self, name: str, detail: object = None) -> None:
        """Show that a node, an agent or another step of the framework begins."""
        shown: Json = {"kind": "step", "name": name}
        if detail is not None:
            shown["detail"] = _bounded(detail)
        await self.turn.working(metadata={RUN_PROGRESS: shown})

    async def _show_thoughts(self) -> None:
        if self._thoughts:
            text, self._thoughts = "".join(self._thoughts), []
            await self.turn.working(metadata={RUN_PROGRESS: {"kind": "thinking", "text": text}})


def _bounded(value: object) -> Any:
    """Return a value as JSON, or the beginning of its text if it is long or not JSON.

    Values inside it that are not JSON, such as a subclass of ``str``, become text.
    """
    try:
        written = msgspec.json.encode(value, enc_hook=str)
    except (TypeError, ValueError):
        return str(value)[:MAX_SHOWN]
    if len(written) <= MAX_SHOWN:
        return msgspec.json.decode(written)
    return written.decode(errors="ignore")[:MAX_SHOWN]
