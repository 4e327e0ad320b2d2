"""Runs of graphs: an attempt at a turn, from the task's newest checkpoint, and its output."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langgraph.errors import is_invalid_resume
from langgraph.graph import StateGraph
from langgraph.types import Command
from pydantic_core import to_jsonable_python

from parley.agent.turn import Turn
from parley.integrations.answers import DoesNotFit, ask_until, clear_decision_in
from parley.integrations.conversations import TaskValue
from parley.integrations.langgraph.contents import (
    AS_DATA,
    ending_of,
    files_in,
    human_message,
    messages_in,
    text_of,
    thinking_of,
    with_replies,
)
from parley.integrations.langgraph.inputs import (
    MESSAGES,
    GraphSchemas,
    default_context,
    json_in,
    question_of,
    resume_value,
    unfit,
)
from parley.integrations.langgraph.threads import (
    ContextCheckpoints,
    GraphThread,
    SaverInThreads,
    Snapshot,
    blocks,
    is_at_breakpoint,
)
from parley.llm.model import Json
from parley.llm.run_output import RunOutput
from parley.model.concurrency import KeyedLocks
from parley.model.parts import Artifact, Message, Part

Durability = Literal["sync", "async", "exit"]

MAX_ASKED = 3
"""How often a task asks for valid input."""

UNFIT = (TypeError, AttributeError, LookupError, ValueError)
"""Exceptions of nodes that need data and receive text."""


class ServedGraph:
    """A graph with the options of its runs: ``config``, ``context``, ``inputs``, ``resume`` and
    ``durability`` of ``agent``.
    """

    def __init__(self, graph: Any, **options: Any) -> None:
        graph = graph.compile() if isinstance(graph, StateGraph) else graph
        self.checkpoints: ContextCheckpoints | None = None
        if getattr(graph, "checkpointer", False) is None:
            self.checkpoints = ContextCheckpoints()
            graph = graph.copy({"checkpointer": self.checkpoints})
        elif blocks(getattr(graph, "checkpointer", False)):
            graph = graph.copy({"checkpointer": SaverInThreads(graph.checkpointer)})
        self.graph = graph
        self.schemas = GraphSchemas(graph)
        self.keeps_state = bool(getattr(graph, "checkpointer", False))
        self.options = options
        self._locks = KeyedLocks()

    async def run(self, turn: Turn, output: RunOutput) -> str | None:
        """Run the graph for a turn, from the task's current state.

        Returns a closing sentence for a graph without a result.
        """
        if self.checkpoints is not None:
            self.checkpoints.attach()
        config = with_replies(self._of("config", turn) or {}, output.requests)
        thread = GraphThread(self.graph, turn, config)
        async with self._locks.of(thread.name):
            return await ThreadRun(self, thread, turn, output).run()

    def _of(self, name: str, turn: Turn) -> Any:
        """Return the value of an option: a value, or a function of the turn."""
        given = self.options[name]
        return given(turn) if callable(given) else given

    def events(self, given: Any, config: Json, turn: Turn) -> AsyncIterator[Any]:
        """Yield the events of a run: namespace, mode and data."""
        options: Json = {"stream_mode": [*STREAM_MODES]}
        context = self._of("context", turn)
        context = default_context(self.graph) if context is None else context
        if context is not None:
            options["context"] = context
        if self.keeps_state:
            options["durability"] = self.options["durability"]
        else:
            options["stream_mode"].append("values")
        events: AsyncIterator[Any] = self.graph.astream(given, config, subgraphs=True, **options)
        return events

    async def input_of(self, turn: Turn) -> Any:
        """Return the input of a graph for the message that began a task.

        Asks the caller for valid data, if the message has none, and rejects the task if the answers
        have none either.
        """
        if self.options["inputs"] is not None:
            found = self.options["inputs"](turn)
            return await found if inspect.isawaitable(found) else found
        if self.schemas.takes_messages:
            return await self._conversation(turn)
        message: Message = turn.message
        for number in range(1, MAX_ASKED + 2):
            try:
                return self.schemas.input_in(message)
            except DoesNotFit as error:
                problem = str(error)
            if number <= MAX_ASKED:
                asked = question_of(problem, self.schemas.input)
                message = await turn.ask(asked, key=f"input:{number}")
        turn.reject(problem)

    async def _conversation(self, turn: Turn) -> Json:
        """Return a message as input of a state with ``messages``.

        Data whose keys are all fields of the state become these fields; other data become a
        message.
        """
        others = set(self.schemas.fields) - {MESSAGES}
        fields: Json = {}
        said = []
        for part in turn.message.parts:
            data = part.data
            if isinstance(data, dict) and data and set(data) <= others:
                try:
                    fields |= self.schemas.checked(data)
                    continue
                except DoesNotFit:
                    pass
            said.append(part)
        if not said:
            return fields
        message = msgspec.structs.replace(turn.message, parts=tuple(said))
        return {**fields, MESSAGES: [await human_message(turn, message)]}


class ThreadRun:
    """An attempt at a turn of a graph's task."""

    def __init__(
        self, served: ServedGraph, thread: GraphThread, turn: Turn, output: RunOutput
    ) -> None:
        self._served = served
        self._thread = thread
        self._turn = turn
        self._output = output
        self._shown = Shown(output)
        self._unfit = TaskValue(turn, "langgraph:unfit")
        self._noted: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._texts: set[str] = set()

    async def run(self) -> str | None:
        """Give the graph its input, ask its questions, and show its result."""
        if not self._served.keeps_state:
            given = await self._served.input_of(self._turn)
            return await self._finish(await self._go(given, self._thread.config()))
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
        """Make the end of this task the start for other tasks of the thread."""
        checkpoints, name = self._served.checkpoints, self._thread.name
        if checkpoints is None:
            return await self._thread.end(state)
        while state is not None:
            newest = await checkpoints.newest(name)
            await self._thread.end(state)
            if await checkpoints.settle(name, newest):
                return
            state, _ = await self._thread.place()  # a task on another replica has ended meanwhile

    async def _go(self, given: Any, config: Json) -> Any:
        """Run the graph, and return the state for a graph without a checkpointer."""
        values = None
        try:
            async with aclosing(self._served.events(given, config, self._turn)) as events:  # type: ignore[type-var]
                async for space, mode, data in events:
                    if mode != "values":
                        await self._shown.event(mode, data)
                    elif not space:
                        values = data
        except UNFIT as error:
            if not isinstance(given, Command) or not await self._is_unfit(error, given.resume):
                raise
        return values

    async def _is_unfit(self, error: Exception, answers: Json) -> bool:
        """Record the answers that the graph could not use; return whether to ask for them again.

        LangGraph reports answers that do not match their schemas. Other answers are text for nodes
        that may need data: if a node fails with one of the typical exceptions, the answer is asked
        for once more.
        """
        unfit = set(answers)
        if not is_invalid_resume(error):
            state, _ = await self._thread.place()
            failed = () if state is None else await self._thread.failed(state)
            found = [{each.id for each in node.interrupts} & self._texts for node, _ in failed]
            if self._output.requests.failure(error) or not found or not all(found):
                return False
            unfit = set().union(*found)
        times = {each: self._asked[each] for each in unfit}
        await self._unfit.write({**self._noted, **times})
        self._texts -= unfit
        return True

    # -- questions -----------------------------------------------------------------------------

    async def _next(self, state: Snapshot) -> Any:
        """Return the input for a graph that has not ended."""
        await self._thread.wait()
        if state.interrupts:
            if any(each.error for each in state.tasks):
                await self._thread.take_back_answers(state)
                self._noted = await self._unfit.read() or {}
                self._asked = dict(self._noted)
            return Command(resume={each.id: await self._answer(each) for each in state.interrupts})
        graph = self._served.graph
        if nodes := is_at_breakpoint(graph, state):
            await self._breakpoint(state, nodes)
        return None

    async def _answer(self, interrupt: Any) -> Any:
        """Ask the question of an interrupt until an answer fits, and return the value to resume
        with.
        """
        schema, again = interrupt.response_schema, interrupt.id in self._noted
        problem = unfit(interrupt.value, schema) if again else ""
        while True:
            number = self._asked.get(interrupt.id, 0) + 1
            self._asked[interrupt.id] = number
            key = f"interrupt:{interrupt.id}" + (f":{number}" if number > 1 else "")
            question = question_of(interrupt.value, schema, problem)
            answer = await self._turn.ask(question, key=key)
            try:
                if (resume := self._served.options["resume"]) is not None:
                    return resume(interrupt.value, answer)
                value = resume_value(interrupt.value, schema, answer)
            except DoesNotFit as error:
                problem = str(error)
                continue
            if schema is None and isinstance(value, str):
                if again:
                    found = json_in(value)
                    return value if found is None else found
                self._texts.add(interrupt.id)
            return value

    async def _breakpoint(self, state: Snapshot, nodes: list[str]) -> None:
        """Ask whether the graph may continue from a breakpoint.

        After no, waiting tool calls get the rejection as their result, and the graph continues;
        without waiting calls the task is rejected.
        """
        values, graph = state.values, self._served.graph
        messages = messages_in(values)
        calls = messages[-1].tool_calls if messages and isinstance(messages[-1], AIMessage) else []
        what = f"Shall I continue with {', '.join(nodes)}?"
        for call in calls:
            what = f"{call['name']}({call['args']})\n{what}"
        key = f"breakpoint:{state.config['configurable']['checkpoint_id']}"
        asks = self._turn, lambda problem: f"{problem} {what}".strip(), clear_decision_in
        if (await ask_until(*asks, key=key)).is_approved:
            return
        if not calls or nodes != list(state.next):
            self._turn.reject(f"Stopped before {', '.join(nodes)} at the caller's request.")
        refused = [
            ToolMessage("The user did not allow this call.", tool_call_id=call["id"])
            for call in calls
        ]
        at = self._thread.config(state)
        await graph.aupdate_state(at, {MESSAGES: refused}, as_node=nodes[0])

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, values: Any) -> str | None:
        """Show the result of the graph: the last reply of the model, and structured output."""
        schemas, reply = self._served.schemas, _last_reply(values)
        if reply is not None:
            self._output.requests.end_as(ending_of(reply.response_metadata))
            is_data = schemas.is_structured(values) and json_in(text_of(reply)) is not None
            await self._shown.finish(None if is_data else text_of(reply))
        result = schemas.result(values)
        if isinstance(result, str) and not schemas.takes_messages:
            await self._shown.finish(result)
        elif result is not msgspec.UNSET and result is not None:
            await self._output.data(result, schema=schemas.result_schema(values))
        nothing = reply is None and not self._output.requests.has_said
        return "The graph ended without a result." if nothing else None


def _last_reply(values: Any) -> AIMessage | None:
    """Return the last message of a state, if it is from a model or a node of the graph."""
    for message in reversed(messages_in(values)):
        if isinstance(message, HumanMessage):
            return None
        if isinstance(message, AIMessage) and not message.tool_calls:
            return message
    return None


STREAM_MODES = ("messages", "custom", "tasks")
"""The requested streams of a graph: message chunks, custom output, starts and ends of nodes."""


class Shown:
    """Shows the events of one run: tokens, tool calls, nodes, and custom output of nodes.

    One message is streamed at a time: chunks of concurrent messages wait for its end. Structured
    output is not shown as text.
    """

    def __init__(self, output: RunOutput) -> None:
        self._output = output
        self._made: dict[str, tuple[AIMessageChunk, str]] = {}
        """The incomplete messages so far, with their nodes."""
        self._ended: set[str] = set()
        self._as_data: set[str] = set()
        self._streamed = ""

    async def event(self, mode: str, data: Any) -> None:
        """Show one event of ``astream(stream_mode=STREAM_MODES, subgraphs=True)``."""
        if mode == "messages":
            message, metadata = data
            if metadata.get(AS_DATA):
                self._as_data.add(message.id or "")
            await self._message(message, str(metadata.get("langgraph_node", "")))
        elif mode == "custom":
            await self._written(data)
        elif "result" not in data:
            await self._output.step(data["name"])
        else:
            await self._end(lambda message, node: node == data["name"])

    async def finish(self, text: str | None) -> None:
        """Let ``text`` be the answer, unless it was shown last."""
        await self._end(lambda message, node: True)
        await self._output.whole(text or "")

    # -- messages ------------------------------------------------------------------------------

    async def _message(self, message: BaseMessage, node: str) -> None:
        if isinstance(message, AIMessageChunk):
            await self._piece(message, node)
        elif isinstance(message, AIMessage):
            if (message.id or "") not in self._ended:
                await self._said(message)  # it was not streamed in chunks
        elif isinstance(message, ToolMessage):
            call_id = message.tool_call_id
            await self._end(lambda each, _: any(c["id"] == call_id for c in each.tool_calls))
            await self._output.tool_returned(
                message.name or "",
                message.text if isinstance(message.content, list) else message.content,
                call_id=call_id,
                is_error=message.status == "error",
            )
            await self._files(message)

    async def _piece(self, piece: AIMessageChunk, node: str) -> None:
        message_id = piece.id or ""
        if message_id in self._ended:
            return
        made = self._made.get(message_id)
        self._made[message_id] = (piece if made is None else made[0] + piece, node)
        if thought := thinking_of(piece):
            await self._output.thinking(thought)
        if text := self._text_of(piece):
            if not self._streamed:
                await self._output.new_message()
                self._streamed = message_id
            if self._streamed == message_id:
                await self._output.text(text)
        if piece.chunk_position == "last":
            await self._end(lambda each, _: (each.id or "") == message_id)

    def _text_of(self, message: BaseMessage) -> str:
        return "" if (message.id or "") in self._as_data else text_of(message)

    async def _end(self, is_whole: Callable[[AIMessage, str], bool]) -> None:
        """End the complete messages: of their nodes, or of their tool calls."""
        for message_id, (message, node) in list(self._made.items()):
            if is_whole(message, node):
                del self._made[message_id]
                await self._said(message, is_shown=self._streamed == message_id)

    async def _said(self, message: AIMessage, *, is_shown: bool = False) -> None:
        """Show the rest of a message that is complete: its text, files and calls."""
        self._ended.add(message.id or "")
        text, is_last = self._text_of(message), is_shown or not self._streamed
        if is_shown:
            self._streamed = ""
        elif (
            text and is_last
        ):  # otherwise another message is being shown, and this is not the last one
            await self._output.new_message()
            await self._output.text(text)
        if is_last or not text:
            await self._files(message)
        for call in message.tool_calls:
            await self._output.tool_called(call["name"], call["args"], call_id=call["id"] or "")

    async def _files(self, message: BaseMessage) -> None:
        for part in files_in(message):
            await self._output.file(part)

    # -- custom output of nodes -------------------------------------------------------------------

    async def _written(self, value: Any) -> None:
        """Show the writes of a node: text as a status, files, other values as steps."""
        if isinstance(value, str):
            await self._output.turn.working(value)
        elif isinstance(value, Part):
            await self._output.file(value)
        elif isinstance(value, Artifact):
            await self._output.turn.artifact(value)
        else:
            detail = to_jsonable_python(value, serialize_unknown=True)
            await self._output.step("custom", detail)
