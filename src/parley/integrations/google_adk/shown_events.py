"""Events of a run of ADK as what a turn shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from parley.integrations.google_adk.content import file_of, parts_of
from parley.integrations.google_adk.task_artifacts import TaskArtifacts
from parley.integrations.litellm_streams import HEARD, HeardReply, listen
from parley.llm.model import ModelUsage
from parley.llm.run_output import ModelRequests, RunOutput

LITELLM = "google.adk.models.lite_llm"
"""The module of ADK that asks models through LiteLLM."""

REFUSAL = "[[REFUSAL]]: "
"""Begins a refusal in a text, as a model of ADK for the chat completions API writes it."""


class ShownEvents:
    """Shows the events of a run: the text of the last message is the answer, the rest progress.

    Each agent of a ``ParallelAgent`` writes an artifact of its own name, because they speak at the
    same time. The text of an agent with an output schema is data. Of the state, progress shows what
    agents say under an ``output_key``: tools keep other things there, such as credentials.
    """

    def __init__(
        self,
        output: RunOutput,
        root: Any,
        artifacts: BaseArtifactService,
        where: Mapping[str, str],
        exits: AsyncExitStack,
    ) -> None:
        self.last_text = ""
        self.error: Event | None = None
        self._output = output
        self._root = root
        self._artifacts = artifacts
        self._where = dict(where)
        self._exits = exits
        self._parallel = parallel_agents(root)
        self._output_keys = output_keys(root)
        self._branches: dict[str, RunOutput] = {}
        self._streamed: dict[str, bool] = {}
        self._begun: dict[str, bool] = {}
        self._author = ""

    async def show(self, event: Event, *, again: bool = False) -> None:
        """Show an event; ``again`` for one of before a crash, whose progress was shown."""
        if event.author == "user":
            return
        if event.error_code:
            self.error = event
        elif event.content is not None and event.content.parts and not event.partial:
            self.error = None
        output = await self._output_of(event)
        if not again:
            await self._show_step(event)
        await self._show_content(output, event, again=again)
        await self._show_files(event)

    async def _output_of(self, event: Event) -> RunOutput:
        name = event.author
        if name not in self._parallel:
            return self._output
        if name not in self._branches:
            requests = self._output.requests
            branch = RunOutput(self._output.turn, artifact=name, requests=requests)
            self._branches[name] = await self._exits.enter_async_context(branch)
        return self._branches[name]

    async def _show_step(self, event: Event) -> None:
        actions = event.actions
        if event.author != self._author:
            self._author = event.author
            await self._output.step(event.author)
        delta = {
            key: value
            for key, value in (actions.state_delta if actions else {}).items()
            if key in self._output_keys
        }
        if delta and not event.partial:
            await self._output.step("state", to_jsonable_python(delta, serialize_unknown=True))

    async def _show_content(self, output: RunOutput, event: Event, *, again: bool) -> None:
        for part in (event.content.parts or ()) if event.content is not None else ():
            if part.thought and part.text:
                if not again and (event.partial or not self._streamed.get(event.author)):
                    await output.thinking(part.text)
            elif part.text:
                await self._say(output, event, part.text)
            elif part.function_call is not None and not event.partial and not again:
                await self._show_call(output, event, part.function_call)
            elif (response := part.function_response) is not None and not again:
                failed = isinstance(response.response, dict) and "error" in response.response
                await output.tool_returned(
                    response.name or "", _returned(response), call_id=response.id or "",
                    is_error=failed,
                )  # fmt: skip
            elif not event.partial and (file := file_of(part)) is not None:
                await output.file(file)
        if event.partial:
            self._streamed[event.author] = True
            return
        if event.output is not None and self._is_result(event):
            await self._show_result(output, event.output)
        if event.content is not None:
            self._streamed[event.author] = False
        if event.content is not None and any(part.text for part in event.content.parts or ()):
            self._begun[event.author] = False

    async def _say(self, output: RunOutput, event: Event, text: str) -> None:
        schema = self._schema_of(event)
        if schema is not None:
            if not event.partial and event.is_final_response():
                await self._show_structured(output, schema, text)
            return
        if event.partial or not self._streamed.get(event.author):
            if not self._begun.get(event.author):
                self._begun[event.author] = True
                await output.new_message()
            await output.text(text)
        if not event.partial:
            self.last_text = text

    async def _show_call(self, output: RunOutput, event: Event, call: types.FunctionCall) -> None:
        if call.id in (event.long_running_tool_ids or ()) and (call.name or "").startswith("adk_"):
            return  # it is asked
        await output.tool_called(call.name or "", dict(call.args or {}), call_id=call.id or "")

    async def _show_files(self, event: Event) -> None:
        if isinstance(self._artifacts, TaskArtifacts) or not event.actions:
            return  # they are the task's already
        for filename, version in event.actions.artifact_delta.items():
            loaded = await self._artifacts.load_artifact(
                filename=filename, version=version, **self._where
            )
            file = None if loaded is None else file_of(loaded, filename)
            if file is not None:
                await self._output.turn.artifact(file, name=filename, artifact_id=filename)

    # -- structured output ---------------------------------------------------------------------

    def _schema_of(self, event: Event) -> Any:
        agent = self._root.find_agent(event.author) if isinstance(self._root, BaseAgent) else None
        return getattr(agent, "output_schema", None)

    def _is_result(self, event: Event) -> bool:
        """Return whether an output is that of the root, not of a node on the way."""
        info = event.node_info
        paths = [info.path, *(info.output_for or ())]
        return any("/" not in path for path in paths)

    async def _show_structured(self, output: RunOutput, kind: Any, text: str) -> None:
        try:
            value = json.loads(text)
        except ValueError:
            await output.text(text)
            return
        self.last_text = text
        await output.data(value, schema=schema_of(kind))

    async def _show_result(self, output: RunOutput, result: Any) -> None:
        value = to_jsonable_python(result, serialize_unknown=True)
        if isinstance(value, str):
            if value != self.last_text:
                self.last_text = value
                await output.new_message()
                await output.text(value)
            return
        kind = getattr(self._root, "output_schema", None)
        if kind is None and isinstance(result, BaseModel):
            kind = type(result)
        await output.data(value, schema=None if kind is None else schema_of(kind))

    def check_whole(self) -> None:
        """Note a reply that broke off: its pieces were shown, and it never came as a whole."""
        if self.error is None and any(self._streamed.values()):
            self._output.requests.replied(None, ending="")


class ModelReplies(BasePlugin):
    """Notes the replies of models in a run, also in agents that are tools.

    ``failure`` is the error of the newest request, if it failed.
    """

    def __init__(self, requests: ModelRequests) -> None:
        super().__init__(name="parley")
        self.failure: Exception | None = None
        self._requests = requests

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Hear what LiteLLM leaves out of the reply."""
        module: Any = sys.modules.get(LITELLM)
        if module is not None and find_spec("litellm"):
            module._ensure_litellm_imported()  # else it is there after the first request alone
            listen(module)
        HEARD.set(HeardReply())
        self.failure = None

    async def on_model_error_callback(
        self, *, callback_context: Any, llm_request: Any, error: Exception
    ) -> None:
        """Remember why a request failed; LiteLLM fails where the end of a stream is missing."""
        self.failure = error
        self._requests.failures.append(error)
        if (HEARD.get() or HeardReply()).is_cut:
            self._requests.replied(None, ending="")

    async def after_model_callback(
        self, *, callback_context: Any, llm_response: LlmResponse
    ) -> None:
        """Note what a request used, and how its reply ended."""
        if llm_response.partial:
            return
        used = llm_response.usage_metadata or types.GenerateContentResponseUsageMetadata()
        usage = ModelUsage(
            input_tokens=used.prompt_token_count or 0,
            output_tokens=(used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
        )
        reason, heard = llm_response.finish_reason, HEARD.get() or HeardReply()
        ending = "" if heard.is_cut else None if reason is None else reason.value
        texts = [part.text or "" for part in parts_of(llm_response.content)]
        refused = [text.partition(REFUSAL)[2] for text in texts if REFUSAL in text]
        self._requests.replied(usage, ending=ending, refusal="".join(refused) or heard.refusal)


def schema_of(kind: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a type that ADK takes as an output schema."""
    if isinstance(kind, dict):
        return kind
    if isinstance(kind, types.Schema):
        written = kind.json_schema.model_dump(mode="json", exclude_none=True, by_alias=True)
        return {key: value for key, value in written.items() if value is not None}
    try:
        return TypeAdapter(kind).json_schema()
    except PydanticUserError:  # a type that pydantic cannot describe has no schema to show
        return None


def output_keys(root: Any) -> frozenset[str]:
    """Return the keys of the state that an agent and its sub-agents write their answers under."""
    found: set[str] = set()
    todo = [root]
    while todo:
        agent = todo.pop()
        todo += getattr(agent, "sub_agents", None) or ()
        if isinstance(key := getattr(agent, "output_key", None), str):
            found.add(key)
    return frozenset(found)


def parallel_agents(root: Any) -> frozenset[str]:
    """Return the names of the agents below a ``ParallelAgent``."""
    found: set[str] = set()

    def look(agent: Any, *, parallel: bool) -> None:
        for each in getattr(agent, "sub_agents", None) or ():
            if parallel or isinstance(agent, ParallelAgent):
                found.add(each.name)
            look(each, parallel=parallel or isinstance(agent, ParallelAgent))

    look(root, parallel=False)
    return frozenset(found)


def _returned(response: types.FunctionResponse) -> Any:
    value = response.response
    if isinstance(value, dict) and set(value) == {"result"}:
        value = value["result"]
    return to_jsonable_python(value, serialize_unknown=True)
