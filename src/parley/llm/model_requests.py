"""The requests of a task to models: what each used, how its reply ended, how many there may be."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import msgspec

from parley.agent.turn import Turn
from parley.engine.turn.attempt import Failed, Rejected, TurnOver
from parley.extensions.run_progress import RUN_PROGRESS
from parley.extensions.spent import Spent
from parley.extensions.usage import USAGE
from parley.llm.model_failures import MAX_CAUSES, model_failure
from parley.llm.model_usage import ModelUsage

MAX_MODEL_CALLS = 100
"""How many requests to models a turn may make, unless the author says."""

MAX_CUT = 3
"""How often in a task a reply that broke off is asked for again."""

REFUSES = "The language model refuses: {}"
FILTERED = "A content filter of the language model stopped the answer."
SHORTENED = "The language model's reply reached its longest length, and is empty."
NOTHING = "The language model answered with nothing."

REQUEST = "parley:model:"
"""Begins the keys of requests in a task's log. The number of the turn and of the request follow."""

LENGTH = "length"
CONTENT_FILTER = "content_filter"

_ENDINGS = {
    LENGTH: {"length", "max_tokens", "max_output_tokens", "model_length"},
    CONTENT_FILTER: {
        "content_filter", "content_filtered", "guardrail_intervened", "safety", "image_safety",
        "recitation", "prohibited_content", "blocklist", "spii",
    },
}  # fmt: skip

S = TypeVar("S", ModelUsage, Spent)


class ReplyCut(BaseException):
    """A reply of a model broke off. No ``except Exception`` of a framework catches it."""


class ModelRequests:
    """The requests of a task to models.

    ``usage`` is what all of them used, as the task's log has it, so a further attempt counts none
    twice. ``spent`` is what tools and other agents have cost. ``ending`` is how the newest reply
    ended: ``length``, ``content_filter``, ``stop`` or empty. ``has_said`` is whether the run has
    shown something of its answer. ``failures`` are the newest errors of requests.
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
        """Note an error of a request. Other errors of the run are no failures of the model."""
        try:
            yield
        except Exception as error:
            self.failures.append(error)
            raise

    def failure(self, error: BaseException) -> str:
        """Return what a caller may know of an error, empty if no request to a model led to it."""
        return model_failure(error, self.failures)

    def count(self, usage: ModelUsage, *, ending: str = "") -> None:
        """Add a request whose usage the task's log has elsewhere."""
        self.usage += usage
        self.ending = _ending_of(ending)

    def replied(
        self, usage: ModelUsage | None, *, ending: str | None = None, refusal: str = ""
    ) -> None:
        """Log what a request used, and note how its reply ended.

        ``usage`` may be that of several requests. ``ending`` is the finish reason in the words of
        the framework or the model, ``None`` where the framework does not say. A reply that ends
        without a finish reason raises ``ReplyCut``. A refusal ends the task as REJECTED with its
        words. More requests than a turn may make end it as FAILED.

        Threads may call it, too. It does not wait there: the event loop may wait for the thread.
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
                    f"The agent asked its model {self._most} times and came to no answer, which is "
                    "the most that a turn may ask (max_model_calls)."
                )
            )

    def _end(self, error: Rejected | Failed) -> NoReturn:
        self._in_loop(lambda: self._turn._attempt.end_with(error))
        raise error

    def _in_loop(self, call: Callable[[], object]) -> None:
        """Call a function in the event loop: now if this is it, else soon."""

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
        """Note how the newest reply ended, in the words of the framework or the model."""
        self.ending = _ending_of(ending or "")

    def check_said(self) -> None:
        """End the task of a run that asked a model, and said nothing, with the reason."""
        if self.has_said:
            return
        self.check_whole()
        if self.usage.requests:
            self._turn.fail(NOTHING)

    def check_whole(self) -> None:
        """End the task of a run that said nothing because the newest reply was stopped."""
        if self.has_said:
            return
        if self.ending == CONTENT_FILTER:
            self._turn.reject(FILTERED)
        if self.ending == LENGTH:
            self._turn.fail(SHORTENED)

    @property
    def total(self) -> Spent:
        """What the run has cost until now, with its tools and the agents that it called."""
        return self.usage.spent + self.spent

    def said(self, artifact: str = "") -> dict[str, Any]:
        """Return the metadata of an artifact, or of the last message: usage, and how it ended.

        The artifacts of a run together say all that it used, and nothing twice.
        """
        others = [each for name, each in self._said.items() if name != artifact]
        usage = _less(self.usage, [each for each, _ in others])
        spent = _less(self.spent, [each for _, each in others])
        self._said[artifact] = (usage, spent)
        progress: dict[str, Any] = {}
        if self.ending in (LENGTH, CONTENT_FILTER):
            progress["finishReason"] = self.ending
        found: dict[str, Any] = {}
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
    said = reason.rpartition(".")[2].lower()  # enumerations of some frameworks write their name
    return next((ours for ours, theirs in _ENDINGS.items() if said in theirs), said and "stop")


def _less(whole: S, parts: list[S]) -> S:
    names = whole.__struct_fields__
    left = {
        name: getattr(whole, name) - sum(getattr(each, name) for each in parts) for name in names
    }
    return type(whole)(**left)
