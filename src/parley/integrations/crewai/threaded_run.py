"""A run in a thread: its access to the turn, questions to the caller, and events."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import Any, TypeVar

from crewai.hooks import LLMCallHookContext, ToolCallHookContext
from openai import Stream
from openai.resources.chat.completions import Completions

from parley.integrations.answers import approval, decision_in, text_in
from parley.integrations.litellm_streams import HeardReply
from parley.integrations.serving import CallKeys, FrameworkRun
from parley.llm.model import ModelUsage
from parley.llm.run_output import CONTENT_FILTER, LENGTH, RunOutput, current_run

R = TypeVar("R")

Show = Callable[[], Coroutine[Any, Any, None]]
"""Creates a coroutine that shows output on the event loop."""


class ThreadStopped(BaseException):
    """The turn has ended or waits, so its thread must end too. Handlers of ``Exception`` do not
    catch it.
    """


class ThreadedRun(FrameworkRun):
    """Runs blocking code of a framework in a thread, which may use the turn through ``wait``.

    Shown output is put in a queue, and written in order by the event loop. When the turn is
    canceled, or is suspended for an answer, the coroutine that the thread awaits is canceled, and
    the thread ends at its next ``wait`` or ``show``. A blocking call that uses neither continues.
    """

    name = "crewai"

    def __init__(self, output: RunOutput) -> None:
        super().__init__(output)
        self._loop = asyncio.get_running_loop()
        self._shown: asyncio.Queue[Show | None] = asyncio.Queue()
        self._lock = threading.Lock()
        self._waits: set[Future[Any]] = set()
        self._is_stopped = False

    async def run(self, function: Callable[[], R]) -> R:
        """Call a function in a thread, with the caller's context, and return its result.

        A run may call several functions in succession.
        """
        self._is_stopped = False
        done: asyncio.Future[R] = self._loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            self._shown.put_nowait(None)
            if done.cancelled() or self._is_stopped:
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except ThreadStopped:
                return
            except BaseException as raised:
                error = raised
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=context.run, args=(work,), name="crewai", daemon=True).start()
        try:
            while (show := await self._shown.get()) is not None:
                await show()
                self._shown.task_done()
            self._shown.task_done()
            return await done
        finally:
            self._stop()

    def show(self, make: Show) -> None:
        """Await the coroutine of ``make`` on the event loop, after all earlier output."""
        if self._is_stopped:
            raise ThreadStopped
        self._loop.call_soon_threadsafe(self._shown.put_nowait, make)

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the event loop, after all earlier output, and return its result.

        Call it in a thread of the run. Raises ``ThreadStopped`` when the turn ends meanwhile.
        """

        async def after_output() -> R:
            await self._shown.join()
            return await coroutine

        with self._lock:
            if self._is_stopped:
                coroutine.close()
                raise ThreadStopped
            future = asyncio.run_coroutine_threadsafe(after_output(), self._loop)
            self._waits.add(future)
        try:
            return future.result()
        except CancelledError:
            raise ThreadStopped from None
        finally:
            self._waits.discard(future)

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            waits = list(self._waits)
        for future in waits:
            future.cancel()


class Feedback:
    """Passes the caller's feedback on an answer to the framework: its ``HumanInputProvider``.

    Yes, or an empty message, accepts the answer. Anything else is feedback for a new answer.
    """

    def __init__(self, run: ThreadedRun) -> None:
        self._run = run
        self._asked = 0

    def setup_messages(self, context: Any) -> bool:
        """Leave the messages to the framework."""
        return False

    def post_setup_messages(self, context: Any) -> None:
        """Leave the messages as they are."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        """Ask until the answer is accepted, in a thread of the run."""
        answer = formatted_answer
        while context.ask_for_human_input:
            if self._takes(answer, context):
                answer = context._invoke_loop()
        return answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        """Ask until the answer is accepted, in an event loop of the framework."""
        answer = formatted_answer
        while context.ask_for_human_input:
            if await asyncio.to_thread(self._takes, answer, context):
                answer = await context._ainvoke_loop()
        return answer

    def _takes(self, answer: Any, context: Any) -> bool:
        feedback = self._run.wait(self._ask(answer))
        context.ask_for_human_input = feedback is not None
        if feedback is not None:
            context.messages.append(context._format_feedback_message(feedback))
        return feedback is not None

    async def _ask(self, answer: Any) -> str | None:
        self._asked += 1
        output = answer.output
        text = output if isinstance(output, str) else output.model_dump_json()
        question = f"{text}\n\nIs this good? Say yes, or what should be different."
        said = await self._run.turn.ask(question, key=f"feedback:{self._asked}")
        decision = decision_in(said)
        if decision is not None and decision.is_approved:
            return None
        return text_in(said).strip() or None


class Asker:
    """Answers ``Flow.ask``: the framework's ``InputProvider``."""

    def __init__(self, run: ThreadedRun) -> None:
        self._run = run
        self._asked = 0

    def request_input(self, message: str, flow: Any, metadata: Any = None) -> str:
        """Ask the caller, in a thread of the run."""
        self._asked += 1
        return text_in(self._run.wait(self._run.turn.ask(message, key=f"input:{self._asked}")))


class Approvals:
    """Asks the caller before tools with certain names are called: a hook of the framework."""

    def __init__(self, run: ThreadedRun, names: Collection[str]) -> None:
        self._run = run
        self._names = {name.strip().lower().replace(" ", "_") for name in names}
        self._keys = CallKeys()

    def __call__(self, context: Any) -> bool | None:
        """Return false for a call that the caller does not approve."""
        name = context.tool_name.strip().lower().replace(" ", "_")
        if name not in self._names:
            return None
        key = self._keys.key("approve", name)
        asked = approval(self._run.turn, context.tool_name, dict(context.tool_input), key=key)
        return self._run.wait(asked).is_approved


def _asks_caller(original: Callable[..., str]) -> Callable[..., str]:
    """Make hooks ask the turn's caller within a run, and the terminal elsewhere."""

    @functools.wraps(original)
    def request_human_input(self: Any, prompt: str, *args: Any, **options: Any) -> str:
        run = current_run(ThreadedRun)
        if run is None:
            return original(self, prompt, *args, **options)
        return text_in(run.wait(run.turn.ask(prompt)))

    return request_human_input


for _context in (ToolCallHookContext, LLMCallHookContext):
    _context.request_human_input = _asks_caller(_context.request_human_input)


MAX_NAME = 120
"""The length limit of a task's description in the name of its step."""


class RunEvents:
    """Shows the events of a run, which come from its threads: a sink for the framework's event
    streams.
    """

    def __init__(self, run: ThreadedRun, *, hidden: bool) -> None:
        self._run, self._output, self._requests = run, run.output, run.requests
        self._hidden = hidden

    def __call__(self, source: Any, event: Any) -> None:
        """Show an event, in the order in which events come."""
        made = getattr(self, f"_{event.type}", lambda _: None)(event)
        if made is not None:
            self._run.show(made)

    def _llm_call_started(self, event: Any) -> Show:
        ENDED.set(self._replied)
        return self._output.new_message

    def _llm_stream_chunk(self, event: Any) -> Show | None:
        if self._hidden or event.tool_call is not None or not event.chunk:
            return None
        return lambda: self._output.text(event.chunk)

    def _llm_thinking_chunk(self, event: Any) -> Show:
        return lambda: self._output.thinking(event.chunk)

    def _llm_call_completed(self, event: Any) -> None:
        if ENDED.get() is not None:  # a model that calls tools itself has several events
            self._replied(event.usage, event.finish_reason, is_empty=not event.response)

    def _llm_call_failed(self, event: Any) -> None:
        if (
            error := sys.exception()
        ) is not None:  # the model emits this event while it handles the error
            self._requests.failures.append(error)

    def _replied(
        self, used: Any, ending: str | None, refusal: str = "", *, is_empty: bool = False
    ) -> None:
        """Count a request, from a thread. A reply that was cut to nothing ends the task."""
        ENDED.set(None)
        used = dict(used or {})
        usage = ModelUsage(
            input_tokens=used.get("prompt_tokens") or used.get("input_tokens") or 0,
            output_tokens=used.get("completion_tokens") or used.get("output_tokens") or 0,
        )

        async def replied() -> None:
            self._requests.replied(usage, ending=ending, refusal=refusal)
            if is_empty and self._requests.ending in (LENGTH, CONTENT_FILTER):
                self._requests.check_said()  # the framework fails without the reason

        self._run.wait(replied())

    def _tool_usage_started(self, event: Any) -> Show:
        return lambda: self._output.tool_called(event.tool_name, event.tool_args)

    def _tool_usage_finished(self, event: Any) -> Show:
        return lambda: self._output.tool_returned(event.tool_name, event.output)

    def _tool_usage_error(self, event: Any) -> Show:
        return lambda: self._output.tool_returned(event.tool_name, str(event.error), is_error=True)

    def _task_started(self, event: Any) -> Show:
        name = event.task_name or "task"
        return lambda: self._output.step(name[:MAX_NAME])

    def _agent_execution_started(self, event: Any) -> Show:
        role = event.agent.role.strip()
        return lambda: self._output.step(role)

    def _method_execution_started(self, event: Any) -> Show | None:
        if event.flow_name in ("AgentExecutor", "StepExecutor"):
            return None
        return lambda: self._output.step(str(event.method_name))


ENDED: ContextVar[Callable[..., None] | None] = ContextVar("parley_crewai_ended", default=None)
"""Counts the reply to this thread's request; ``None`` after the reply was counted."""

_create: Any = Completions.create


def _heard(*args: Any, **options: Any) -> Any:
    made, ended = _create(*args, **options), ENDED.get()
    if isinstance(made, Stream) and ended is not None:
        made._iterator = _chunks(made._iterator, ended, bool(options.get("response_format")))
    elif ended is not None:
        whole = made.parse() if hasattr(made, "parse") else made
        for choice in whole.choices or ():
            if choice.message.refusal:
                ended(whole.usage, "stop", choice.message.refusal)
    return made


def _chunks(chunks: Iterator[Any], ended: Any, is_value: bool) -> Iterator[Any]:
    """Yield the chunks of a reply, without chunks that the package may mistake for a failure."""
    heard, usage, said, last = HeardReply(), None, False, []
    try:
        for chunk in chunks:
            usage = chunk.usage or usage
            heard.look_at(chunk, "delta")
            for choice in chunk.choices or ():
                said |= bool(choice.delta.content or choice.delta.tool_calls)
            if heard.ending or is_value:
                last.append(chunk)
            else:
                yield chunk
    except Exception:
        if said:
            ended(usage, "", heard.refusal)
        raise
    ended(usage, heard.ending or "", heard.refusal, is_empty=not said)
    yield from last


Completions.create = _heard  # type: ignore[method-assign]
