"""Requests to models, the same in all adapters: usage, ends of replies, failures, the bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import pytest

import parley
from parley import Task, TaskState, Turn
from parley.extensions.usage import USAGE, spent_on
from parley.integrations import serving
from parley.integrations.serving import framework_agent
from parley.llm.model import ModelUsage
from parley.llm.run_output import RUN_PROGRESS, RunOutput, model_failure

pytestmark = pytest.mark.anyio

Run = Callable[[Turn, RunOutput], Awaitable[object]]

TEN = ModelUsage(input_tokens=7, output_tokens=3)


@asynccontextmanager
async def served(run: Run, **options: object) -> AsyncIterator[parley.Client]:
    agent = framework_agent(run, name="Runner", **options)  # type: ignore[arg-type]
    async with parley.connect(agent) as remote:
        yield remote


async def said_of(run: Run, **options: object) -> Task:
    async with served(run, **options) as remote:
        task = await remote.send("go")
    assert task.id
    return task


def why(task: Task) -> str:
    assert task.status.message is not None
    return task.status.message.text


async def test_usage_is_summed_once_over_questions_and_artifacts() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        if turn.attempt == 1 and turn.number == 1:
            output.requests.replied(TEN)
        await turn.ask("Which?")
        output.requests.replied(TEN)
        await output.data({"n": 1}, name="first")
        output.requests.replied(TEN)
        await output.data({"n": 2}, name="second")
        await output.text("done")

    async with served(run) as remote:
        asked = await remote.send("go")
        task = await remote.send("this", task_id=asked.id)
    assert spent_on(task).tokens == 30
    said = [(each.metadata or {}).get(USAGE) for each in task.artifacts]
    assert said == [{"tokens": 20}, {"tokens": 10}, None]


async def test_a_task_that_fails_says_what_it_used() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        output.requests.replied(TEN)
        turn.fail("No.")

    task = await said_of(run)
    assert (task.state, spent_on(task).tokens) == (TaskState.FAILED, 10)


async def test_a_refusal_is_rejected_with_its_words() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        await output.text("I ")
        try:
            output.requests.replied(TEN, ending="stop", refusal="I do not do that.")
        except BaseException:
            await output.text("went on")

    task = await said_of(run)
    assert task.state is TaskState.REJECTED
    assert why(task) == "The language model refuses: I do not do that."
    assert spent_on(task).tokens == 10


async def test_a_thread_counts_while_the_event_loop_waits_for_it() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(output.requests.replied, TEN, ending="stop").result()
            refused = pool.submit(output.requests.replied, TEN, refusal="No.")
            assert isinstance(refused.exception(), BaseException)
        await asyncio.sleep(0)
        await output.text("went on")

    task = await said_of(run)
    assert (task.state, spent_on(task).tokens) == (TaskState.REJECTED, 20)


@pytest.mark.parametrize(
    ("ending", "state", "words"),
    [
        ("stop", TaskState.FAILED, "answer was empty"),
        ("max_tokens", TaskState.FAILED, "maximum length"),
        ("FinishReason.SAFETY", TaskState.REJECTED, "content filter"),
    ],
)
async def test_a_run_that_ends_with_nothing_says_why(
    ending: str, state: TaskState, words: str
) -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        output.requests.replied(TEN, ending=ending)

    task = await said_of(run)
    assert task.state is state
    assert words in why(task)


async def test_an_answer_that_was_shortened_is_marked() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        await output.text("The begin")
        output.requests.replied(TEN, ending="length")

    task = await said_of(run)
    assert task.state is TaskState.COMPLETED
    assert (task.artifacts[0].metadata or {})[RUN_PROGRESS]["finishReason"] == "length"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause; with a shorter one the turn would not sleep."""
    monkeypatch.setattr(serving, "CUT_SECONDS", 1.05)


async def test_a_reply_that_broke_off_is_asked_for_again(soon: None) -> None:
    asked = []

    async def run(turn: Turn, output: RunOutput) -> None:
        asked.append(turn.attempt)
        await output.text("Hello" if len(asked) < 3 else "Hello world")
        try:
            output.requests.replied(None, ending="" if len(asked) < 3 else "stop")
        except Exception as error:
            raise AssertionError("frameworks catch this") from error

    task = await said_of(run)
    assert (task.state, task.text, len(asked)) == (TaskState.COMPLETED, "Hello world", 3)


async def test_a_reply_that_breaks_off_each_time_fails_the_task(soon: None) -> None:
    asked = []

    async def run(turn: Turn, output: RunOutput) -> None:
        asked.append(turn.attempt)
        output.requests.replied(TEN, ending="")

    task = await said_of(run)
    assert (task.state, len(asked)) == (TaskState.FAILED, 4)
    assert "was interrupted" in why(task)
    assert spent_on(task).tokens == 40


async def test_a_turn_asks_its_model_no_more_than_it_may() -> None:
    asked = []

    async def run(turn: Turn, output: RunOutput) -> None:
        while True:
            asked.append(turn.attempt)
            output.requests.replied(TEN, ending="tool_calls")
            await output.step("again")

    task = await said_of(run, max_model_calls=5)
    assert (task.state, len(asked)) == (TaskState.FAILED, 6)
    assert "max_model_calls" in why(task)
    with pytest.raises(ValueError, match="max_model_calls"):
        framework_agent(run, name="Runner", max_model_calls=0)


def failure(name: str, package: str = "openai", **about: object) -> Exception:
    kind: type[Exception] = type(name, (Exception,), {"__module__": f"{package}._errors"})
    raised = kind("http://secret.example")
    vars(raised).update(about)
    return raised


def said_of_failed(raised: BaseException) -> str:
    return model_failure(raised, [raised])


def test_callers_learn_of_a_model_that_fails_and_nothing_of_its_address() -> None:
    status = failure("APIStatusError", status=503)
    wrapped = RuntimeError("http://secret.example")
    wrapped.__cause__ = ExceptionGroup("two", [ValueError(), status])
    in_client = failure("ChatClientError")
    in_client.__cause__ = failure("ReadTimeout", "httpx")
    throttled = {"ResponseMetadata": {"HTTPStatusCode": 400}}
    said = [
        said_of_failed(failure("RateLimitError", status_code=429)),
        said_of_failed(failure("ThrottlingException", "botocore", response=throttled)),
        said_of_failed(failure("APITimeoutError")),
        said_of_failed(in_client),
        said_of_failed(failure("ConnectError", "httpx")),
        said_of_failed(failure("ClientError", "google.genai", code=404)),
        said_of_failed(failure("AuthenticationError", status_code=401)),
        model_failure(wrapped, [status]),
    ]
    assert said == [
        "The language model is busy; try again later.",
        "The language model is busy; try again later.",
        "The language model did not answer in time; try again later.",
        "The language model did not answer in time; try again later.",
        "The language model cannot be reached now; try again later.",
        "The language model rejected the request with status 404.",
        "The language model does not accept this agent's credentials.",
        "The language model failed with status 503; try again later.",
    ]


@pytest.mark.parametrize("package", ["httpx", "openai", "botocore", "shop"])
async def test_only_an_error_of_a_request_to_the_model_is_told_as_its_failure(package: str) -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        with suppress(Exception), output.requests.asking():  # a retry of the framework
            raise failure("ConnectError", package)
        output.requests.replied(TEN, ending="tool_calls")
        raise RuntimeError("the tool failed") from failure("ConnectError", package)

    task = await said_of(run)
    assert task.state is TaskState.FAILED
    assert "language model" not in why(task)


async def test_a_failure_of_the_model_is_told_by_every_adapter_alike() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        await output.text("I am")
        try:
            with output.requests.asking():
                raise failure("APIStatusError", status_code=503)
        except Exception as error:
            raise RuntimeError("the node failed") from error

    task = await said_of(run, told=[(LookupError, "", "The graph has no end.")])
    assert task.state is TaskState.FAILED
    assert why(task) == "The language model failed with status 503; try again later."
    own = await said_of(run, told=[(RuntimeError, "node failed", "It has no end: {}.")])
    assert why(own) == "It has no end: the node failed."


async def test_an_error_of_the_framework_is_told_where_another_error_wraps_it() -> None:
    async def run(turn: Turn, output: RunOutput) -> None:
        raise RuntimeError("the run failed") from LookupError("a limit of 3")

    task = await said_of(run, told=[(LookupError, "limit", "It reached {}.")])
    assert (task.state, why(task)) == (TaskState.FAILED, "It reached a limit of 3.")
    other = await said_of(run, told=[(LookupError, "other", "It reached {}.")])
    assert "limit" not in why(other)
