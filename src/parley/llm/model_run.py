"""A run of a model in a turn: requests, tool calls, the final answer; thinking, typed answers."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from parley.agent.tools.tool import Tool
from parley.llm.conversation import Messages, ModelConversation, estimated
from parley.llm.model import (
    Json,
    Model,
    ModelReply,
    ModelRequest,
    ModelToolCall,
    ModelUsage,
    ReplyBroken,
    text_of,
)
from parley.llm.run_output import (
    CONTENT_FILTER,
    FILTERED,
    LENGTH,
    MAX_CUT,
    NOTHING,
    REFUSES,
    SHORTENED,
    RunOutput,
)
from parley.llm.token_budget import ModelRefused, RunStopped, TokenSpending, priced
from parley.llm.tool_calls import ToolCalls, has_right_arguments
from parley.model.backoff import Backoff
from parley.model.struct import valid_text
from parley.model.typed.schema import is_object, object_of
from parley.model.typed.value_type import ValueType
from parley.model.typed.violations import Mismatch, Violation
from parley.observe import tracing

MAX_EMPTY = 2
"""The number of empty replies a run may have."""

AGAIN = Backoff(first=0.5, longest=4.0, jitter=(0.75, 1.0))
"""The pauses before an interrupted reply is requested again, in seconds."""


class ModelRun:
    """A run of a ``ModelLoop``. Each completed reply is a step, and so is each tool call: a further
    attempt at the turn continues after the last step.
    """

    def __init__(
        self,
        loop: Any,
        output: RunOutput,
        key: str,
        model: Model,
        tools: Mapping[str, Tool],
        *,
        writes: bool,
    ) -> None:
        turn = self._turn = output.turn
        self._loop = loop
        self._output = output
        self._key = key
        self._model = model
        self._kind = loop.output
        self._writes = writes
        self._writes_text = writes and loop.output is None
        self._spending = TokenSpending(turn, loop.budget, key)
        self._calls = ToolCalls(turn, tools, output, self._spending)
        self._offered = self._calls.offered
        self._conversation = ModelConversation(turn, key, loop.memory_tokens)
        self._ids: set[str] = set()
        self._number = 0
        self._last = 0

    async def answer(self, instructions: str, content: Any) -> Any:
        """Run until the answer, and return it: text, or a value of the output type.

        Raises ``ModelFailed`` and ``RunStopped``.
        """
        before: Messages = [{"role": "system", "content": instructions}] if instructions else []
        before += await self._conversation.earlier()
        self._ids.update(call["id"] for each in before for call in each.get("tool_calls", ()))
        own: Messages = [{"role": "user", "content": content}]
        reply = await self._last_reply(before, own)
        if self._kind is None:
            own.append({"role": "assistant", "content": reply.text})
            await self._conversation.add(own)
            return reply.text
        value = await self._value(before, own, reply)
        await self._conversation.add(own)
        return value

    async def _last_reply(self, before: Messages, own: Messages) -> ModelReply:
        """Request replies and call tools until a reply calls none. Their messages are added to
        ``own``.
        """
        empty, earlier = 0, ""
        for _ in range(self._loop.max_rounds):
            reply, is_new = await self._reply([*before, *own], self._offered)
            if not reply.tool_calls:
                if reply.text.strip() or earlier:
                    if not reply.text.strip():
                        reply = msgspec.structs.replace(reply, text=earlier)
                    return reply
                if self._output.requests.ending == CONTENT_FILTER:
                    raise ModelRefused(FILTERED)
                if self._output.requests.ending == LENGTH:
                    raise RunStopped(SHORTENED)
                empty += 1
                if empty == MAX_EMPTY:
                    raise RunStopped(NOTHING)
                continue
            earlier = reply.text.strip() or earlier
            own.append(_said(reply))
            key = f"{self._key}:{self._number}"
            own += await self._calls.all(reply.tool_calls, key, is_new=is_new)
        raise RunStopped(
            f"The language model called tools {self._loop.max_rounds} times without "
            "reaching an answer."
        )

    # -- replies -------------------------------------------------------------------------------

    async def _reply(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], *, asks_for_json: bool = False
    ) -> tuple[ModelReply, bool]:
        """Return the next reply, and whether it is new to the log."""
        self._number += 1
        number, kind = self._number, self._kind
        wants_json = kind is not None and (asks_for_json or not tools)
        request = ModelRequest(
            messages=messages,
            tools=tools,
            response_format=kind.response_format if kind is not None and wants_json else None,
            **self._loop.asks_for,
        )
        is_new = False

        async def ask_model() -> ModelReply:
            nonlocal is_new
            is_new = True
            return await self._asked(request)

        reply: ModelReply = await self._turn.step(f"{self._key}:reply:{number}", ask_model)
        self._ids.update(call.id for call in reply.tool_calls)
        self._output.requests.count(reply.usage, ending=reply.finish_reason)
        self._last = reply.usage.input_tokens
        await self._spending.count(number, reply)
        if not is_new and self._writes_text and not reply.tool_calls:
            await self._output.text(reply.text)  # an earlier attempt may have streamed part of it
        if reply.finish_reason == "length" and is_new:
            await self._output.step("cut", "the reply reached its limit of tokens")
        if reply.refusal:
            raise ModelRefused(REFUSES.format(reply.refusal))
        return reply, is_new

    async def _asked(self, request: ModelRequest) -> ModelReply:
        """Request a reply, and show it as it arrives; repeat the request for an
        interrupted reply.
        """
        times = 0
        while True:
            try:
                return await self._asked_once(request)
            except ReplyBroken:
                times += 1
                if times > MAX_CUT:
                    raise
            await self._output.new_message()
            await asyncio.sleep(AGAIN.delay(times))

    async def _asked_once(self, request: ModelRequest) -> ModelReply:
        left = await self._spending.left(request, self._output.requests.total, self._last)
        if left is not None:
            most = left if request.max_tokens is None else min(left, request.max_tokens)
            request = msgspec.structs.replace(request, max_tokens=most)
        if tracing.tracer is None:
            return (await self._read_reply(request))[0]
        name = request.model or getattr(self._model, "name", "")
        attributes = _request_attributes(request, name, self._model)
        with tracing.spanned(f"chat {name}".strip(), "client", attributes) as span:
            reply, model = await self._read_reply(request)
            if span is not None:
                span.set_attributes(_reply_attributes(reply, model))
            return reply

    async def _read_reply(self, request: ModelRequest) -> tuple[ModelReply, str]:
        """Return a reply, and the name of the model in it."""
        tags, said = ThinkTags(), [""]
        calls: list[ModelToolCall] = []
        usage, reason, refusal, thought, model = None, "", "", 0, ""
        kept: list[str] = []
        chunks: Any = self._model.stream(request)
        async with aclosing(chunks):
            async for chunk in chunks:
                if chunk.thinking:
                    thought += len(chunk.thinking)
                    kept.append(chunk.thinking)
                    await self._output.thinking(chunk.thinking)
                thought += await self._show(tags.add(chunk.text), said)
                calls += chunk.tool_calls
                refusal += chunk.refusal
                usage = usage if chunk.usage is None else chunk.usage
                reason, model = chunk.finish_reason or reason, chunk.model or model
        thought += await self._show(tags.end(), said)
        if not reason:
            raise ReplyBroken("the reply of the model ended without a finish reason")
        text = valid_text("".join(said))  # a stream may split an emoji
        calls = [valid_text(self._with_own_id(call)) for call in calls]
        if usage is None:  # the endpoint does not report usage
            usage = ModelUsage(
                input_tokens=estimated([*request.messages, *request.tools]),
                output_tokens=estimated([text, calls]) + thought // 4,
                requests=1,
            )
        name = getattr(self._model, "name", "")
        wants_it_back = bool(getattr(self._model, "returns_thinking", False))
        reply = ModelReply(
            id=secrets.token_hex(8),
            text=text,
            thinking=valid_text("".join(kept)) if wants_it_back and calls else "",
            refusal=valid_text(refusal),
            tool_calls=tuple(calls),
            usage=priced(usage, name, self._loop.prices),
            finish_reason=reason,
        )
        return reply, model

    async def _show(self, pieces: Sequence[Any], said: list[str]) -> int:
        """Show pieces of a reply, and return how many of its characters are thinking."""
        thought = 0
        for piece in pieces:
            if piece.all_before and (before := "".join(said)):
                said.clear()
                thought += len(before)
                await self._output.thinking(before)
                await self._output.new_message()
            if piece.thinking:
                thought += len(piece.thinking)
                await self._output.thinking(piece.thinking)
            if piece.text:
                said.append(piece.text)
                if self._writes_text:
                    await self._output.text(piece.text)
        return thought

    def _with_own_id(self, call: ModelToolCall) -> ModelToolCall:
        """Return a call with an id that is unique in the run."""
        chosen, number = call.id, 1
        while chosen in self._ids:
            number += 1
            chosen = f"{call.id}_{number}"
        self._ids.add(chosen)
        return call if chosen == call.id else msgspec.structs.replace(call, id=chosen)

    # -- answers of a type ---------------------------------------------------------------------

    async def _value(self, before: Messages, own: Messages, reply: ModelReply) -> Any:
        """Return the value in a reply; the model gets one more try for a valid value."""
        kind = self._kind
        assert kind is not None
        tries = 2 if self._offered else 1  # with tools the first reply was not requested as JSON
        while True:
            own.append({"role": "assistant", "content": reply.text})
            try:
                value = kind.read(reply.text)
                break
            except Mismatch as mismatch:
                if not tries:
                    raise RunStopped(
                        f"The language model's answer does not match the requested type: {mismatch}"
                    ) from None
                tries -= 1
                said = f"That does not fit: {mismatch}. {kind.instructions}"
                own.append({"role": "user", "content": said})
            reply, _ = await self._reply([*before, *own], (), asks_for_json=True)
        if self._writes:
            await self._output.data(kind.dump(value), schema=kind.schema)
        return value


def _said(reply: ModelReply) -> Json:
    """Return a reply with tool calls as a message. Arguments that are not JSON are left out,
    because endpoints reject such messages.
    """
    thinking = {"reasoning_content": reply.thinking} if reply.thinking else {}
    return {
        "role": "assistant",
        "content": reply.text or None,
        **thinking,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name or "unknown",
                    "arguments": call.arguments if has_right_arguments(call) else "{}",
                },
            }
            for call in reply.tool_calls
        ],
    }


# -- spans (GenAI semantic conventions of OpenTelemetry) --------------------------------------


def _request_attributes(request: ModelRequest, name: str, model: Model) -> Json:
    """Return the attributes of a request, with its messages only where content is recorded."""
    found: Json = {"gen_ai.operation.name": "chat"}
    if name:
        found["gen_ai.request.model"] = name
    if place := getattr(model, "place", ""):
        found["gen_ai.provider.name"] = "openai"  # its API; the address names the server
        found["server.address"] = urlsplit(place).netloc
    else:
        found["gen_ai.provider.name"] = type(model).__name__
    if request.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = request.max_tokens
    if tracing.records_content:
        found["gen_ai.input.messages"] = _recorded(request.messages)
    return found


def _reply_attributes(reply: ModelReply, model: str) -> Json:
    found: Json = {
        "gen_ai.response.finish_reasons": (reply.finish_reason,),
        "gen_ai.usage.input_tokens": reply.usage.input_tokens,
        "gen_ai.usage.output_tokens": reply.usage.output_tokens,
    }
    if model:
        found["gen_ai.response.model"] = model
    if tracing.records_content:
        found["gen_ai.output.messages"] = _recorded([_said(reply)])
    return found


def _recorded(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages in the JSON form of the conventions."""
    found = []
    for each in messages:
        parts: list[Json] = []
        if each.get("role") == "tool":
            response = {"id": each.get("tool_call_id"), "response": text_of(each)}
            parts.append({"type": "tool_call_response", **response})
        elif text := text_of(each):
            parts.append({"type": "text", "content": text})
        calls = each.get("tool_calls") or ()
        parts += [{"type": "tool_call", "id": call["id"], **call["function"]} for call in calls]
        found.append({"role": each.get("role"), "parts": parts})
    return msgspec.json.encode(found).decode()


_TAG = re.compile(r"(?<!`)<(/?)(?:think|thinking)>", re.IGNORECASE)

_BEGUN = re.compile(r"<(?:/?[a-z]{0,9})?$", re.IGNORECASE)

_NAMES = ("think>", "thinking>")


class Piece(NamedTuple):
    """A piece of a reply. ``all_before``: all text before it was thinking as well."""

    text: str = ""
    thinking: str = ""
    all_before: bool = False


class ThinkTags:
    """Splits the text of one reply into the answer and the thinking.

    A closing tag without an opening tag means that all text before it was thinking: some templates
    put the opening tag into the request. A tag after a backtick is text about the tag.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_thinking = False
        self._has_tags = False
        self._has_text = False
        self._last = ""

    def add(self, text: str) -> list[Piece]:
        """Add a piece of text, and return the pieces that are certain now."""
        return self._split(self._held + text, is_end=False)

    def end(self) -> list[Piece]:
        """Return the remaining pieces at the end of the reply."""
        return self._split(self._held, is_end=True)

    def _split(self, text: str, *, is_end: bool) -> list[Piece]:
        found: list[Piece] = []
        at, context = 0, self._last
        whole = context + text
        for tag in _TAG.finditer(whole, len(context)):
            start, end = tag.start() - len(context), tag.end() - len(context)
            closes = bool(tag[1])
            if closes and not self._is_thinking and self._has_tags:
                continue  # neither open nor the first tag: plain text
            if not closes and self._is_thinking:
                continue
            if closes and not self._is_thinking:
                found.append(Piece(thinking=text[at:start], all_before=True))
                self._has_text = False
            else:
                found.append(self._piece(text[at:start]))
            self._is_thinking, self._has_tags = not closes, True
            at = end
        rest = text[at:]
        begun = None if is_end else _BEGUN.search(rest)
        if begun is not None and _may_become_tag(begun[0]):
            self._held = rest[begun.start() :]
            rest = rest[: begun.start()]
        else:
            self._held = ""
        found.append(self._piece(rest))
        used = text[: len(text) - len(self._held)]
        self._last = (context + used)[-1:]
        return [each for each in found if each.text or each.thinking or each.all_before]

    def _piece(self, text: str) -> Piece:
        if self._is_thinking:
            return Piece(thinking=text)
        if not self._has_text:  # models often begin with blank lines, especially after thinking
            text = text.lstrip()
            self._has_text = bool(text.strip())
        return Piece(text=text)


def _may_become_tag(text: str) -> bool:
    name = text[1:].removeprefix("/").lower()
    return any(each.startswith(name) for each in _NAMES)


_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)

_DECODER = msgspec.json.Decoder()


class OutputType:
    """The type of the answers of a model. Raises ``TypeError`` for a type without a JSON form."""

    def __init__(self, kind: Any) -> None:
        self._type = ValueType(kind)
        self._is_wrapped = not is_object(self._type.schema)
        self.schema = self._type.output_schema
        self.asked: Mapping[str, Any] = (
            object_of({"value": self._type.schema}, ["value"])
            if self._is_wrapped
            else self._type.schema
        )

    @property
    def response_format(self) -> Json:
        """The ``response_format`` that requests JSON of the schema from an endpoint."""
        return {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": dict(self.asked)},
        }

    @property
    def instructions(self) -> str:
        """The instruction for the model, for endpoints that ignore ``response_format``."""
        schema = msgspec.json.encode(self.asked).decode()
        return f"Your final answer is JSON alone, without other words, of this schema: {schema}"

    def read(self, text: str) -> Any:
        """Return the value in a text, also with words or a fence around the JSON.

        Raises ``Mismatch``.
        """
        mismatch = Mismatch([Violation((), "expected JSON, and nothing else")])
        for candidate in _candidates(text):
            try:
                data = _DECODER.decode(candidate)
            except (msgspec.DecodeError, UnicodeEncodeError):
                continue
            if self._is_wrapped and isinstance(data, dict) and set(data) == {"value"}:
                data = data["value"]
            try:
                return self._type.read(data)
            except Mismatch as error:
                mismatch = error
        raise mismatch

    def dump(self, value: Any) -> Any:
        """Return a value as JSON data."""
        return self._type.dump(value)


def _candidates(text: str) -> list[str]:
    """Return the parts of a text that may be the JSON: all of it, fenced parts, bracketed parts."""
    found = [text.strip(), *(fenced.strip() for fenced in _FENCED.findall(text))]
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            found.append(text[start : end + 1])
    return found
