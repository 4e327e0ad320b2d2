"""Runs in a turn: messages, counted requests, remembered replies, questions, output.

A turn is re-run from its beginning for every answer and after a crash. The framework has no
checkpoint within an agent's run, so each model reply and each tool result is a step of the task: a
further attempt reads them from its log, and repeats no model request and no tool call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from agent_framework import (
    BaseChatClient,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionMiddleware,
    Message,
    ResponseStream,
)

from parley.agent.turn import Turn
from parley.integrations.answers import approval, ask_until, clear_decision_in, said_in
from parley.integrations.message_files import input_of, part_of_data_url
from parley.integrations.serving import RememberedCalls, json_value
from parley.llm.model import Json, ModelUsage
from parley.llm.run_output import ModelRequests, RunOutput, current_requests
from parley.model.parts import Part

PARLEY = "parley_remote_skill"
"""Marks tools that are remote skills: the turn remembers their calls itself."""

Next = Callable[[], Awaitable[None]]


OPENAI = "agent_framework_openai"
"""The package whose replies have a finish reason: a reply without one is interrupted or
continues.
"""


def counted(client: Any, made: Any, requests: ModelRequests) -> Any:
    """Return a pending response or its stream, and count the request when the response arrives.

    It wraps the client itself, so that a remembered reply is not counted.
    """
    modules = {each.__module__.partition(".")[0] for each in type(client).__mro__}

    def replied(response: Any) -> None:
        usage, ending = response.usage_details or {}, response.finish_reason
        if OPENAI in modules and not response.continuation_token:
            ending = ending or ""
        contents = [each for message in response.messages for each in message.contents]
        requests.replied(
            ModelUsage(
                input_tokens=usage.get("input_token_count") or 0,
                output_tokens=usage.get("output_token_count") or 0,
            ),
            ending=ending,
            refusal="".join(each.text for each in contents if is_refusal(each)),
        )

    async def whole() -> Any:
        with requests.asking():
            response = await made
        if isinstance(response, ResponseStream):
            return stream(response)
        replied(response)
        return response

    def stream(found: Any) -> Any:
        async def updates() -> AsyncIterator[Any]:
            seen = []
            with requests.asking():
                async for update in found:
                    seen.append(update)
                    yield update
            replied(ChatResponse.from_updates(seen))

        return ResponseStream(updates(), finalizer=lambda _: found.get_final_response())

    return stream(made) if isinstance(made, ResponseStream) else whole()


def is_refusal(content: Any) -> bool:
    """Return whether content is the refusal of a model."""
    return (content.additional_properties or {}).get("model_output_kind") == "refusal"


def _get_response(
    self: Any, *given: Any, get_response: Any = BaseChatClient.get_response, **named: Any
) -> Any:
    """Call the original method. Agents in tools and executors ignore the middleware of a run."""
    made, requests = get_response(self, *given, **named), current_requests()
    return made if requests is None else counted(self, made, requests)


BaseChatClient.get_response = _get_response


class RememberReplies(ChatMiddleware):  # type: ignore[misc]
    """Makes each reply of the model a step of the turn. It is streamed the first time."""

    def __init__(self, calls: RememberedCalls, requests: ModelRequests) -> None:
        self._calls = calls
        self._requests = requests

    async def process(self, context: Any, call_next: Next) -> None:
        """Call the model, or read its reply from the log."""
        asked = [_asked(message) for message in context.messages]
        key, kept = self._calls.recall("model", asked)
        if kept is not msgspec.UNSET and kept is not None:
            response = ChatResponse.from_dict(kept)
            self._requests.end_as(response.finish_reason)
            context.result = _streamed(_updates(response)) if context.stream else response
            return
        await call_next()
        if kept is None:  # the reply was too long to remember
            return
        made = context.result

        async def live() -> AsyncIterator[Any]:
            async for update in made:
                yield update
            await self._calls.keep(key, _written(await made.get_final_response()))

        if context.stream:
            context.result = _streamed(live())
        else:
            await self._calls.keep(key, _written(made))


def _streamed(updates: AsyncIterator[Any]) -> Any:
    return ResponseStream(updates, finalizer=ChatResponse.from_updates)


class RememberResults(FunctionMiddleware):  # type: ignore[misc]
    """Makes each call of a tool a step of the turn, except those of remote skills."""

    def __init__(self, calls: RememberedCalls) -> None:
        self._calls = calls

    async def process(self, context: Any, call_next: Next) -> None:
        """Call the tool, or read its result from the log."""
        if (context.function.additional_properties or {}).get(PARLEY):
            await call_next()
            return
        asked = [context.function.name, _plain(context.arguments)]
        key, kept = self._calls.recall("tool", asked)
        if kept is None or kept is msgspec.UNSET:
            await call_next()
            if kept is not None:
                await self._calls.keep(key, _result(context.result))
        elif "contents" in kept:
            context.result = [Content.from_dict(each) for each in kept["contents"]]
        else:
            context.result = kept["value"]


IDENTITY = ("type", "text", "name", "arguments", "call_id", "result", "uri", "approved")


def _asked(message: Any) -> list[Any]:
    """Return the parts of a message that are equal in each attempt: not its ids."""
    said = []
    for content in message.contents:
        found = {name: getattr(content, name, None) for name in IDENTITY}
        said.append({name: _plain(each) for name, each in found.items() if each is not None})
    return [str(message.role), said]


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value


def _written(response: Any) -> Json:
    written: Json = response.to_dict(exclude={"raw_representation", "value"})
    return written


def _result(result: Any) -> Json | None:
    """Return the result of a tool as JSON, ``None`` if it has no JSON form."""
    if isinstance(result, list) and all(isinstance(each, Content) for each in result):
        return {"contents": [each.to_dict(exclude={"raw_representation"}) for each in result]}
    return json_value(result)


async def _updates(response: Any) -> AsyncIterator[Any]:
    """Yield a whole reply as the updates of a stream."""
    for message in response.messages:
        yield ChatResponseUpdate(
            contents=message.contents,
            role=message.role,
            message_id=message.message_id,
            response_id=response.response_id,
            conversation_id=response.conversation_id,
            model=response.model,
            finish_reason=response.finish_reason,
        )
    if response.usage_details:
        usage = Content.from_usage(response.usage_details)
        yield ChatResponseUpdate(contents=[usage], role="assistant")


async def message_of(turn: Turn) -> Any:
    """Return the message that began the task as a user message of the framework."""
    contents = []
    for each in await input_of(turn, turn.message):
        if isinstance(each, str):
            contents.append(Content.from_text(each))
        else:
            named = {"filename": each.filename} if each.filename else None
            contents.append(
                Content.from_data(each.content, each.media_type, additional_properties=named)
            )
    return Message("user", contents)


def file_of(content: Any) -> Part | None:
    """Return content of the framework as a file part, ``None`` if it is not a file."""
    if content.type not in ("data", "uri") or not content.uri:
        return None
    filename = str(content.additional_properties.get("filename", ""))
    part = part_of_data_url(content.uri, filename)
    if part is None or part.media_type:
        return part
    return Part(url=part.url, media_type=content.media_type or "", filename=filename)


async def answer_to(turn: Turn, request: Any, *, key: str) -> Any:
    """Ask the caller one request, and return the content that answers it.

    A tool that needs approval is approved or rejected. If the caller has to run a tool, the text or
    the data of the answer is its result.
    """
    if request.type == "function_approval_request":
        call = request.function_call
        decision = await approval(turn, call.name, call.parse_arguments() or {}, key=key)
        return request.to_function_approval_response(decision.is_approved)
    if request.type == "function_call":
        arguments = request.parse_arguments() or {}
        data = {"kind": "toolCall", "tool": request.name, "arguments": arguments}
        question = f"Please run {request.name} and send what it returns."
        answer = await turn.ask([Part(text=question), Part(data=data)], key=key)
        return Content.from_function_result(request.call_id, result=said_in(answer))
    if request.type == "oauth_consent_request":
        asked = f"Please give your consent at {request.consent_link}, then send a message."
        answer = await turn.require_auth(asked, key=key)
        return Content.from_text(answer.text or "I gave my consent.")
    raise NotImplementedError(
        f"the agent asks for {request.type}, which an A2A message cannot answer; "
        "run tools of this kind with a handler of the framework"
    )


async def yes_or_no(turn: Turn, question: str, *, key: str) -> bool:
    """Ask the caller until the answer is yes or no."""

    def asked(problem: str) -> str:
        return f"{problem} {question} Answer yes or no.".strip()

    return (await ask_until(turn, asked, clear_decision_in, key=key)).is_approved


def schema_of(response_format: Any) -> Json | None:
    """Return the JSON Schema of a response format: a pydantic model, or an object with one."""
    if hasattr(response_format, "model_json_schema"):
        schema: Json = response_format.model_json_schema()
        return schema
    if not isinstance(response_format, Mapping):
        return None
    inner = response_format.get("json_schema", response_format)
    return dict(inner.get("schema", inner)) if isinstance(inner, Mapping) else None


def plain(value: Any) -> Any:
    """Return a value of the framework as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return msgspec.to_builtins(value)


class ShownUpdates:
    """Shows updates: text as the answer unless ``hidden``, tool calls, thinking, files.

    The arguments of a call arrive in pieces; the call is shown when the next content begins.
    """

    def __init__(self, output: RunOutput, *, hidden: bool = False) -> None:
        self._output = output
        self._hidden = hidden
        self._calls: Json = {}
        self._newest = ""

    async def content(self, content: Any) -> None:
        """Show one piece of content."""
        output, call_id = self._output, getattr(content, "call_id", None) or ""
        if content.type == "function_call":
            call_id = self._newest = call_id or self._newest
            begun = self._calls.get(call_id)
            self._calls[call_id] = content if begun is None else begun + content
            return
        await self.flush()
        match content.type:
            case "text" if content.text and not self._hidden and not is_refusal(content):
                await output.text(content.text)
            case "text_reasoning" if content.text:
                await output.thinking(content.text)
            case "function_result":
                is_error = content.exception is not None
                await output.tool_returned("", content.result, call_id=call_id, is_error=is_error)
            case "data" | "uri":
                part = file_of(content)
                if part is not None:
                    await output.file(part)

    async def flush(self) -> None:
        """Show the calls with complete arguments."""
        calls, self._calls = self._calls, {}
        for call_id, call in calls.items():
            arguments = call.parse_arguments() or {}
            await self._output.tool_called(call.name, arguments, call_id=call_id)
