"""Where the framework would read the terminal: the turn's caller is asked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection
from typing import Any

from crewai.hooks import LLMCallHookContext, ToolCallHookContext

from parley.integrations.answers import text_in
from parley.integrations.approvals import approval, decision_in
from parley.integrations.crewai.threaded_run import ThreadedRun, current_run
from parley.integrations.remembered_calls import CallKeys


class Feedback:
    """Gives the framework what the caller says of an answer: its ``HumanInputProvider``.

    Yes, or an empty message, accepts the answer. Anything else is feedback: the agent answers anew.
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
            if self._takes(context, self._run.wait(self._ask(answer))):
                answer = context._invoke_loop()
        return answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        """Ask until the answer is accepted, in an event loop of the framework."""
        answer = formatted_answer
        while context.ask_for_human_input:
            if self._takes(context, await asyncio.to_thread(self._run.wait, self._ask(answer))):
                answer = await context._ainvoke_loop()
        return answer

    def _takes(self, context: Any, feedback: str | None) -> bool:
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
    """Let hooks ask the turn's caller within a run, and read the terminal elsewhere."""

    @functools.wraps(original)
    def request_human_input(self: Any, prompt: str, *args: Any, **options: Any) -> str:
        run = current_run()
        if run is None:
            return original(self, prompt, *args, **options)
        return text_in(run.wait(run.turn.ask(prompt)))

    return request_human_input


for _context in (ToolCallHookContext, LLMCallHookContext):
    _context.request_human_input = _asks_caller(_context.request_human_input)
