"""Runs of graphs: one attempt at a turn, from where its task stands in its thread."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.errors import is_invalid_resume
from langgraph.graph import StateGraph
from langgraph.types import Command
from pydantic import ValidationError

from parley.agent.turn import Turn
from parley.extensions.typed_questions import schema_part
from parley.integrations.langgraph.checkpoints import ContextCheckpoints
from parley.integrations.langgraph.contents import human_message, messages_in, text_of
from parley.integrations.langgraph.questions import (
    NotUnderstood,
    Resume,
    go_on,
    question_of,
    resume_value,
)
from parley.integrations.langgraph.replies import ending_of, with_replies
from parley.integrations.langgraph.schemas import MESSAGES, GraphSchemas, default_context
from parley.integrations.langgraph.showing import STREAM_MODES, Shown
from parley.integrations.langgraph.sync_savers import SaverInThreads, blocks
from parley.integrations.langgraph.threads import (
    GraphThread,
    Snapshot,
    ThreadLocks,
    is_at_breakpoint,
)
from parley.llm.run_output import RunOutput
from parley.model.parts import Message, Part, Role
from parley.model.uuid7 import new_id

Durability = Literal["sync", "async", "exit"]


class ServedGraph:
    """A graph and how it is run."""

    def __init__(
        self,
        graph: Any,
        config: Mapping[str, Any] | Callable[[Turn], Mapping[str, Any]] | None,
        context: Any,
        inputs: Callable[[Turn], Any] | None,
        resume: Resume | None,
        durability: Durability,
    ) -> None:
        graph = graph.compile() if isinstance(graph, StateGraph) else graph
        self.checkpoints: ContextCheckpoints | None = None
        if getattr(graph, "checkpointer", False) is None:
            self.checkpoints = ContextCheckpoints()
            graph = graph.copy({"checkpointer": self.checkpoints})
        elif blocks(getattr(graph, "checkpointer", False)):
            graph = graph.copy({"checkpointer": SaverInThreads(graph.checkpointer)})
        self.graph = graph
        self.schemas = GraphSchemas(graph)
        self.resume = resume
        self._config = config
        self._context = context
        self._inputs = inputs
        self._durability = durability
        self._locks = ThreadLocks()

    async def run(self, turn: Turn, output: RunOutput) -> str | None:
        """Run the graph for a turn, from where its task stands.

        Returns a sentence for a graph that has nothing to show.
        """
        if self.checkpoints is not None:
            self.checkpoints.attach()
        config = self._config(turn) if callable(self._config) else self._config
        thread = GraphThread(self.graph, turn, with_replies(config or {}, output.requests))
        async with self._locks.of(thread.name):
            return await ThreadRun(self, thread, turn, output).run()

    def events(
        self, given: Any, config: dict[str, Any], turn: Turn, *modes: str
    ) -> AsyncIterator[Any]:
        """Yield the events of a run, in further ``modes`` too: namespace, mode and data."""
        options: dict[str, Any] = {}
        context = self._context(turn) if callable(self._context) else self._context
        if context is None:
            context = default_context(self.graph)
        if context is not None:
            options["context"] = context
        if self.keeps_state:
            options["durability"] = self._durability
        events: AsyncIterator[Any] = self.graph.astream(
            given, config, stream_mode=[*STREAM_MODES, *modes], subgraphs=True, **options
        )
        return events

    @property
    def keeps_state(self) -> bool:
        """Whether the graph has a checkpointer."""
        return bool(getattr(self.graph, "checkpointer", False))

    async def input_of(self, turn: Turn) -> Any:
        """Return the input of a graph for the message that began a task.

        Asks the caller for data that fits, if the message has none.
        """
        if self._inputs is not None:
            found = self._inputs(turn)
            return await found if inspect.isawaitable(found) else found
        schemas = self.schemas
        if schemas.takes_messages:
            return await self._conversation(turn)
        message: Message = turn.message
        number = 0
        while True:
            number += 1
            try:
                return schemas.checked(_input_in(message, schemas))
            except ValueError as error:
                parts = [Part(text=str(error))]
                if schemas.input is not None:
                    parts.append(schema_part(schemas.input))
                asked = Message(message_id=new_id(), role=Role.AGENT, parts=tuple(parts))
                message = await turn.ask(asked, key=f"input:{number}")

    async def _conversation(self, turn: Turn) -> dict[str, Any]:
        """Return a message as input of a state with ``messages``.

        Data whose keys are all fields of the state are these fields; other data are said.
        """
        others = set(self.schemas.fields) - {MESSAGES}
        fields: dict[str, Any] = {}
        said = []
        for part in turn.message.parts:
            data = part.data
            if isinstance(data, dict) and data and set(data) <= others:
                try:
                    fields |= self.schemas.checked(data)
                    continue
                except ValueError:
                    pass
            said.append(part)
        if not said:
            return fields
        message = msgspec.structs.replace(turn.message, parts=tuple(said))
        return {**fields, MESSAGES: [await human_message(turn, message)]}


class ThreadRun:
    """One attempt at a turn of a graph's task."""

    def __init__(
        self, served: ServedGraph, thread: GraphThread, turn: Turn, output: RunOutput
    ) -> None:
        self._served = served
        self._thread = thread
        self._turn = turn
        self._output = output
        self._shown = Shown(output)
        self._refused: dict[str, str] = {}
        self._times: dict[str, int] = {}

    async def run(self) -> str | None:
        """Give the graph what it has not had, ask what it asks, and show what it returns."""
        if not self._served.keeps_state:
            given = await self._served.input_of(self._turn)
            values = await self._without_state(given)
            return await self._finish(values)
        state, is_newest = await self._thread.place()
        if state is None:
            given = await self._served.input_of(self._turn)
            await self._go(given, await self._thread.beginning())
            state, is_newest = await self._thread.place()
        while state is not None and state.next:
            given = await self._next(state)
            await self._go(given, self._thread.config(None if is_newest else state))
            state, is_newest = await self._thread.place()
        if state is None:
            raise RuntimeError("the checkpointer of the graph lost the state of its thread")
        said = await self._finish(state.values)
        await self._end(state)
        return said

    async def _end(self, state: Snapshot | None) -> None:
        """Let other tasks of the thread begin from where this one has ended."""
        checkpoints, name = self._served.checkpoints, self._thread.name
        if checkpoints is None:
            return await self._thread.end(state)
        while state is not None:
            newest = await checkpoints.newest(name)
            await self._thread.end(state)
            if await checkpoints.settle(name, newest):
                return
            state, _ = await self._thread.place()  # on another replica a task ended meanwhile

    async def _go(self, given: Any, config: dict[str, Any]) -> None:
        try:
            async with aclosing(self._served.events(given, config, self._turn)) as events:  # type: ignore[type-var]
                async for _, mode, data in events:
                    await self._shown.event(mode, data)
        except ValidationError as error:
            if not is_invalid_resume(error) or not isinstance(given, Command):
                raise
            # Nothing was kept of the answers, so what still waits is asked again.
            for interrupt_id in given.resume or {}:
                self._refused[interrupt_id] = "That does not fit."

    async def _without_state(self, given: Any) -> Any:
        config = self._thread.config()
        values: Any = None
        async with aclosing(self._served.events(given, config, self._turn, "values")) as events:  # type: ignore[type-var]
            async for space, mode, data in events:
                if mode == "values":
                    values = data if not space else values
                else:
                    await self._shown.event(mode, data)
        return values

    # -- questions -----------------------------------------------------------------------------

    async def _next(self, state: Snapshot) -> Any:
        """Return what a graph that has not ended goes on with."""
        await self._thread.wait()
        if state.interrupts:
            return Command(resume={each.id: await self._answer(each) for each in state.interrupts})
        graph = self._served.graph
        if nodes := is_at_breakpoint(graph, state):
            await self._breakpoint(state, nodes)
        return None

    async def _answer(self, interrupt: Any) -> Any:
        """Ask what an interrupt asks until the answer fits, and return what to resume with."""
        schema = interrupt.response_schema
        problem = self._refused.pop(interrupt.id, "")
        while True:
            number = self._times.get(interrupt.id, 0) + 1
            self._times[interrupt.id] = number
            key = f"interrupt:{interrupt.id}" + (f":{number}" if number > 1 else "")
            question = question_of(interrupt.value, schema, problem)
            answer = await self._turn.ask(question, key=key)
            try:
                if self._served.resume is not None:
                    return self._served.resume(interrupt.value, answer)
                return resume_value(interrupt.value, schema, answer)
            except NotUnderstood as error:
                problem = str(error)

    async def _breakpoint(self, state: Snapshot, nodes: list[str]) -> None:
        """Ask whether the graph may go on from a breakpoint.

        If not, tool calls that wait are answered with the refusal, and the graph goes on; without
        any the task is rejected.
        """
        values, graph = state.values, self._served.graph
        messages = messages_in(values)
        calls = messages[-1].tool_calls if messages and isinstance(messages[-1], AIMessage) else []
        what = f"Shall I go on with {', '.join(nodes)}?"
        for call in calls:
            what = f"{call['name']}({call['args']})\n{what}"
        key = f"breakpoint:{state.config['configurable']['checkpoint_id']}"
        problem, number = "", 0
        while True:
            number += 1
            asked = f"{problem} {what}".strip()
            answer = await self._turn.ask(asked, key=f"{key}:{number}" if number > 1 else key)
            try:
                may = go_on(answer)
            except NotUnderstood as error:
                problem = str(error)
                continue
            break
        if may:
            return
        if not calls or nodes != list(state.next):
            self._turn.reject(f"Stopped before {', '.join(nodes)}, as the caller said.")
        refused = [
            ToolMessage("The user did not allow this call.", tool_call_id=call["id"])
            for call in calls
        ]
        at = self._thread.config(state)
        await graph.aupdate_state(at, {MESSAGES: refused}, as_node=nodes[0])

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, values: Any) -> str | None:
        """Show what the graph returned: the last word of the model, and structured output."""
        schemas, reply = self._served.schemas, _last_reply(values)
        if reply is not None:
            self._output.requests.end_as(ending_of(reply.response_metadata))
            await self._shown.finish(text_of(reply))
        result = schemas.result(values)
        if isinstance(result, str) and not schemas.takes_messages:
            await self._shown.finish(result)
        elif result is not msgspec.UNSET and result is not None:
            await self._output.data(result, schema=schemas.result_schema(values))
        nothing = reply is None and not self._output.has_said
        return "The graph ended without a result." if nothing else None


def _last_reply(values: Any) -> AIMessage | None:
    """Return the last message of a state, if a model or a node of the graph said it."""
    for message in reversed(messages_in(values)):
        if isinstance(message, HumanMessage):
            return None
        if isinstance(message, AIMessage) and not message.tool_calls:
            return message
    return None


def _input_in(message: Message, schemas: GraphSchemas) -> Any:
    """Return the input that a message has. Raises ``ValueError`` without any."""
    for part in message.parts:
        if part.has_data:
            return part.data
    text = message.text
    if schemas.takes_text:
        return text
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if isinstance(found, dict) or (found is not None and not schemas.fields):
        return found
    if text and (field := schemas.text_field):
        return {field: text}
    fields = ", ".join(schemas.fields) or "input"
    raise ValueError(f"The message has no data; what is needed: {fields}.")
