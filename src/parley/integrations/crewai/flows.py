"""A flow of the framework, run for a turn; its state is kept with the context."""

from __future__ import annotations

import functools
from typing import Any

from crewai.flow.async_feedback import ConsoleProvider, HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow_config import flow_config
from crewai.flow.persistence.base import FlowPersistence

from parley.integrations.answers import text_in
from parley.integrations.conversations import ContextState
from parley.integrations.crewai.people import Asker
from parley.integrations.crewai.threaded_run import ThreadedRun, current_run
from parley.integrations.task_values import TaskValue

STATE = "crewai.flow-state"
"""The key of the state that the flows of a context share."""


async def run_flow(kind: type[Any], run: ThreadedRun, inputs: dict[str, Any]) -> Any:
    """Run a flow until it ends; a method that wants feedback asks the caller, and then goes on.

    While the caller is asked, the framework's own record of the pause is kept: no method that has
    ended runs again for the answer. A flow begins with the state of those that have ended, and
    changes of it what it has changed itself.
    """
    turn = run.turn
    state = _State()
    paused, shared = TaskValue(turn, "crewai.pause"), ContextState(turn, STATE)
    pause = await paused.read()
    number = 0 if pause is None else pause["number"]
    earlier = await shared.read(step="flow")
    result = None
    if pause is None:
        result = await run.run(functools.partial(_begin, kind, run, state, inputs, earlier))
    while pause is not None or isinstance(result, HumanFeedbackPending):
        if pause is None:
            number += 1
            pause = {**state.pending, "number": number}
            await paused.write(pause)
        answer = await turn.ask(_question(pause["context"]), key=f"feedback:{number}")
        state.pending = pause
        resume = functools.partial(_resume, kind, run, state, pause["id"], text_in(answer))
        pause = None
        result = await run.run(resume)
    if state.newest is not None:
        newest = {name: value for name, value in state.newest.items() if name != "id"}
        await shared.write(earlier, newest)
    return result


def _begin(
    kind: type[Any],
    run: ThreadedRun,
    state: _State,
    inputs: dict[str, Any],
    earlier: dict[str, Any],
) -> Any:
    flow = kind()
    flow.input_provider = Asker(run)
    flow.persistence = state
    for name, value in _fitting(flow.state, earlier).items():
        if isinstance(flow.state, dict):
            flow.state[name] = value
        else:
            setattr(flow.state, name, value)
    result = flow.kickoff(inputs=_fitting(flow.state, inputs))
    state.save_state("", "", flow.state)
    return result


def _resume(kind: type[Any], run: ThreadedRun, state: _State, id: str, feedback: str) -> Any:
    flow = kind.from_pending(id, state)
    flow.input_provider = Asker(run)
    result = flow.resume(feedback)
    state.save_state("", "", flow.state)
    return result


def _fitting(state: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs that a typed state has fields for, all of them for a state without type."""
    fields = getattr(type(state), "model_fields", None)
    if fields is None or type(state).model_config.get("extra") == "allow":
        return inputs
    return {name: value for name, value in inputs.items() if name in fields}


def _question(context: dict[str, Any]) -> str:
    """Return what a flow asks, with what it is about."""
    output = context.get("method_output")
    text = "" if output is None else f"{getattr(output, 'raw', output)}\n\n"
    choices = context.get("emit")
    which = f" ({', '.join(choices)})" if choices else ""
    return f"{text}{context['message']}{which}"


class _State(FlowPersistence):  # type: ignore[misc]
    """The framework's persistence for one task: in memory; ``run_flow`` puts it into the store."""

    pending: dict[str, Any] = {}
    newest: dict[str, Any] | None = None

    def init_db(self) -> None:
        """Nothing is to be set up."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Keep the state after a method, and at the end of a run."""
        self.newest = _plain(state_data)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return the newest state."""
        return self.newest

    def save_pending_feedback(self, flow_uuid: str, context: Any, state_data: Any) -> None:
        """Keep the state of a flow that waits, and what it waits for."""
        self.newest = _plain(state_data)
        self.pending = {"id": flow_uuid, "context": context.to_dict(), "state": self.newest}

    def load_pending_feedback(self, flow_uuid: str) -> Any:
        """Return the state of a flow that waits, and what it waits for."""
        context = PendingFeedbackContext.from_dict(self.pending["context"])
        return self.pending["state"], context

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Forget what the flow waited for."""
        self.pending = {}


def _plain(state: Any) -> Any:
    if hasattr(state, "model_dump"):
        return state.model_dump(mode="json")
    return {str(name): value for name, value in dict(state).items()}


class _InRuns:
    """Pauses flows in turns of Parley, and leaves others to the provider that was configured."""

    def __init__(self, configured: Any) -> None:
        self._configured = configured

    def request_feedback(self, context: Any, flow: Any) -> Any:
        """Pause the flow of a turn."""
        if current_run() is not None:
            raise HumanFeedbackPending(context=context)
        return self._configured.request_feedback(context, flow)


flow_config.hitl_provider = _InRuns(flow_config.hitl_provider or ConsoleProvider())
