"""Requests match each endpoint's own clients, and endpoints' deviations are tolerated."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from traceback import format_exception

import pytest
from starlette.responses import Response, StreamingResponse

from parley.llm import ModelFailed, ModelRequest, OpenAIModel, openai_model
from parley.llm.model import ModelChunk
from parley.model.backoff import Backoff
from tests.llm.raw_endpoint import RawEndpoint, events, refusal, refusing, whole

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"
AT_ONCE = Backoff(first=0.001, longest=0.002)
ASKED = ModelRequest(messages=[{"role": "user", "content": "Hello?"}])
HELLO = events({"role": "assistant", "content": "Hel"}, {"content": "lo."}, {"finish": "stop"})


def model(raw: RawEndpoint, **options) -> OpenAIModel:
    options = {"api_key": KEY, "backoff": AT_ONCE, **options}
    return OpenAIModel("qwen3:8b", base_url=raw.url, **options)


async def said(model: OpenAIModel, request: ModelRequest = ASKED) -> list[ModelChunk]:
    return [chunk async for chunk in model.stream(request)]


def calls(chunks: list[ModelChunk]) -> list[tuple[str, str, str]]:
    return [(c.id, c.name, c.arguments) for chunk in chunks for c in chunk.tool_calls]


async def test_tool_calls_come_in_pieces(raw) -> None:
    def piece(index, call_id=None, name=None, arguments=None):
        function = {"name": name, "arguments": arguments}
        return {"tool_calls": [{"index": index, "id": call_id, "function": function}]}

    raw.will(
        events(
            piece(0, "a", "rain", ""),
            piece(1, "b", "wind", '{"at"'),
            piece(0, None, None, '{"in":'),
            piece(1, None, None, ': "sea"}'),
            piece(0, None, None, ' "Oslo"}'),
            {"finish": "tool_calls"},
        )
    )
    chunks = await said(model(raw))
    assert calls(chunks) == [("a", "rain", '{"in": "Oslo"}'), ("b", "wind", '{"at": "sea"}')]


@pytest.mark.parametrize(
    "deltas",
    [
        [{"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}},
         {"index": 0, "id": "b", "function": {"name": "two", "arguments": "{}"}}],
        [{"id": "a", "function": {"name": "one", "arguments": {}}},
         {"id": "b", "function": {"name": "two", "arguments": {}}}],
        [{"index": 0, "function": {"name": "one", "arguments": "{}"}},
         {"index": 0, "function": {"name": "two"}}],
    ],
    ids=["all have the index 0", "none has an index", "none has an id"],
)  # fmt: skip
async def test_calls_of_careless_endpoints_are_told_apart(raw, deltas) -> None:
    raw.will(events(*[{"tool_calls": [delta]} for delta in deltas], {"finish": "tool_calls"}))
    found = calls(await said(model(raw)))
    assert [(name, arguments) for _, name, arguments in found] == [("one", "{}"), ("two", "{}")]
    assert len({call_id for call_id, _, _ in found}) == 2


def named(name: str | None, arguments: str | None = None, **members) -> dict:
    return {"tool_calls": [{**members, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [named("we", index=0, id="a"), named("ather", index=0), named(None, "{}", index=0)],
        [named("weather", "{", index=0), named("weather", "}", index=0)],
        [named("weather", "{", index=0, id="a"), named("weather", "}", index=0, id="a")],
        [named("weather", "{}", index=0, id="a", type="function"), {"tool_calls": []}],
        [named("weather", "{}", id="")],
        [{"function_call": {"name": "weather", "arguments": "{"}},
         {"function_call": {"arguments": "}"}}],
    ],
    ids=["a name in pieces", "a name again", "name and id again", "an empty list", "whole, no id",
         "the older form"],
)  # fmt: skip
async def test_shapes_of_calls(raw, deltas) -> None:
    raw.will(events(*deltas, {"finish": "tool_calls"}))
    assert [each[1:] for each in calls(await said(model(raw)))] == [("weather", "{}")]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                     {"type": "text", "text": "Yes."}]},
        {"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]},
        {"content": "Yes.", "reasoning": "Hm.", "reasoning_content": "Hm."},
    ],
    ids=["parts", "parts with text", "two names at once"],
)  # fmt: skip
async def test_shapes_of_content(raw, delta) -> None:
    raw.will(events(delta, {"finish": "stop"}))
    first, _ = await said(model(raw))
    assert (first.text, first.thinking) == ("Yes.", "Hm.")


async def test_a_whole_message_in_a_stream_is_read(raw) -> None:
    call = {"id": "a", "function": {"name": "weather", "arguments": {}}}
    whole = {"role": "assistant", "content": "Yes.", "tool_calls": [call]}
    raw.will(events({"raw": {"choices": [{"message": whole, "finish_reason": "stop"}]}}))
    chunks = await said(model(raw))
    assert (chunks[0].text, calls(chunks)) == ("Yes.", [("a", "weather", "{}")])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_events_without_data_are_left_out(raw, end) -> None:
    pings = [": OPENROUTER PROCESSING", "event: ping", "retry: 3000", "id: 7", "data:", "data: "]
    text = '{"choices": [{"delta": {"content": "Hi."}, "finish_reason": "stop"}]}'
    sent = (2 * end).join([*pings, f"event: message{end}data: {text}", "data: [DONE]"])

    async def pieces() -> AsyncIterator[str]:
        for at in range(0, len(sent), 7):
            yield sent[at : at + 7]

    raw.will(lambda body: StreamingResponse(pieces(), media_type="text/event-stream"))
    assert [chunk.text for chunk in await said(model(raw))] == ["Hi.", ""]


async def test_a_short_key_is_masked_where_it_is_a_word(raw) -> None:
    raw.will(refusal(400, "nonetheless none of None: key=none, 'none'"))
    with pytest.raises(ModelFailed, match="400") as caught:
        await said(model(raw, api_key="none"))
    assert "nonetheless [key] of None: key=[key], '[key]'" in str(caught.value)


@pytest.mark.parametrize("member", ["stream_options", "response_format", "max_completion_tokens"])
async def test_what_an_endpoint_does_not_know_is_left_out_from_then_on(raw, member) -> None:
    refused = "max_tokens" if member.startswith("max") else member

    def answer(body):
        if refused in body:
            return refusal(400, f"{refused} is not supported; use {member}")(body)
        return HELLO(body)

    raw.will(answer)
    request = ModelRequest(
        messages=ASKED.messages, max_tokens=9, response_format={"type": "json_object"}
    )
    asked = model(raw)
    assert (await said(asked, request))[0].text == "Hel"
    await said(asked, request)
    assert [refused in body for body in raw.bodies] == [True, False, False]
    if member.startswith("max"):
        assert raw.bodies[-1][member] == 9


async def test_requests_at_the_same_time_all_leave_out_what_is_refused(raw) -> None:
    raw.will(refusing("stream_options", HELLO))
    asked = model(raw)
    replies = await asyncio.gather(*(said(asked) for _ in range(3)))
    assert [reply[0].text for reply in replies] == ["Hel"] * 3


async def test_what_the_author_sends_is_not_sent_again_once_it_is_refused(raw) -> None:
    raw.will(refusal(400, "max_tokens is not supported; use max_completion_tokens"))
    with pytest.raises(ModelFailed, match="max_completion_tokens"):
        await said(model(raw, options={"max_tokens": 9}))
    assert len(raw.bodies) == 1


@pytest.mark.parametrize("field", ["content", "reasoning", "tool_calls"])
async def test_a_reply_without_an_end_is_cut_off(raw, monkeypatch, field) -> None:
    monkeypatch.setattr(openai_model, "MAX_REPLY", 1000)
    call = {"index": 0, "id": "a", "function": {"name": "one", "arguments": "x" * 50}}
    piece = {field: [call] if field == "tool_calls" else "x" * 50}
    raw.will(events(*[piece] * 100, {"finish": "stop"}))
    with pytest.raises(ModelFailed, match="more than 1,000 characters"):
        await said(model(raw))
    assert len(raw.bodies) == 1


@pytest.mark.parametrize(
    ("piece", "limit", "said_so"),
    [
        ("data: " + "x" * 500, "MAX_EVENT_BYTES", "an event of the stream .* more than 1,000 b"),
        ("data: {}\n", "MAX_EVENT_BYTES", "an event of the stream .* more than 1,000 b"),
        (": still here\n\n", "MAX_ANSWER_BYTES", "the reply .* more than 1,000 bytes"),
        ('data: {"choices": []}\r\n\r\n', "MAX_ANSWER_BYTES", "the reply .* more than 1,000 b"),
    ],
    ids=["line", "event", "comments", "empty events"],
)
async def test_a_stream_without_an_end_is_cut_off(raw, monkeypatch, piece, limit, said_so) -> None:
    monkeypatch.setattr(openai_model, limit, 1000)
    sent: list[str] = []

    async def endless() -> AsyncIterator[str]:
        while True:
            sent.append(piece)
            yield piece
            await asyncio.sleep(0)

    raw.will(lambda body: StreamingResponse(endless(), media_type="text/event-stream"))
    with pytest.raises(ModelFailed, match=said_so):
        await asyncio.wait_for(said(model(raw)), 20)
    assert len(raw.bodies) == 1


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_is_compressed_is_refused(raw, status) -> None:
    packed = gzip.compress(b"data: " + b" " * 10_000_000)
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/event-stream"}
    raw.will(lambda body: Response(packed, status, headers))
    with pytest.raises(ModelFailed, match="sent a compressed response"):
        await said(model(raw))
    assert raw.headers[0]["accept-encoding"] == "identity"
    assert len(raw.bodies) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_endpoint_is_asked_again(raw, status) -> None:
    raw.will(refusal(status, headers={"Retry-After": "0"}), refusal(status), HELLO)
    chunks = await said(model(raw))
    assert "".join(chunk.text for chunk in chunks) == "Hello."
    assert len(raw.bodies) == 3


async def test_one_that_stays_busy_is_given_up(raw) -> None:
    raw.will(refusal(503, "all workers are busy"))
    with pytest.raises(ModelFailed, match=r"answered 503: all workers are busy") as caught:
        await said(model(raw, retries=2))
    assert caught.value.status == 503
    assert len(raw.bodies) == 3


async def test_one_that_asks_for_a_long_pause_is_not_waited_for(raw) -> None:
    raw.will(refusal(429, headers={"Retry-After": "86400"}))
    with pytest.raises(ModelFailed, match="busy, or the quota is exhausted"):
        await said(model(raw))
    assert len(raw.bodies) == 1


async def test_a_stream_that_breaks_before_its_first_piece_is_repeated(raw) -> None:
    raw.will(events({"raw": {"error": {"message": "overloaded"}}}), HELLO)
    assert "".join(chunk.text for chunk in await said(model(raw))) == "Hello."


async def test_one_that_breaks_later_is_not(raw) -> None:
    raw.will(events({"content": "Hel"}, {"raw": {"error": {"message": "out of memory"}}}))
    with pytest.raises(ModelFailed, match=r"broke off.*out of memory"):
        await said(model(raw))
    assert len(raw.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (refusal(401, f"Incorrect API key provided: {KEY}"), "rejects the key .401."),
        (refusal(404, "model not found"), "ollama pull qwen3:8b"),
        (refusal(400, f"the key {KEY} may not do this"), r"the key \[key\] may not do this"),
        (refusal(400, "qwen3:8b does not support tools"), "does not support tools"),
        (whole({"choices": []}), "without a stream of events"),
        (refusal(307, headers={"Location": "/elsewhere"}), "redirects .307."),
    ],
    ids=["the key", "the model", "a quoted key", "its words", "no stream", "a redirect"],
)
async def test_errors_say_what_would_be_right_and_never_the_key(raw, answer, match, caplog) -> None:
    raw.will(answer)
    caplog.set_level("DEBUG")
    with pytest.raises(ModelFailed, match=match) as caught:
        await said(model(raw))
    assert len(raw.bodies) == 1
    traceback = "".join(format_exception(caught.value))
    assert KEY not in traceback + caplog.text


async def test_an_endpoint_that_is_not_there(raw) -> None:
    nowhere = OpenAIModel("x", base_url="http://me:pass@127.0.0.1:9/v1", retries=1, backoff=AT_ONCE)
    with pytest.raises(ModelFailed, match=r"cannot reach .* http://127.0.0.1:9/v1") as caught:
        await said(nowhere)
    assert "pass" not in str(caught.value) + repr(nowhere)
    assert "ollama" not in str(caught.value)


async def test_connections_are_kept_open_within_a_block(raw) -> None:
    raw.will(HELLO)
    asked = model(raw)
    async with asked, asked:
        await said(asked)
        await said(asked)
    await said(asked)
    await asyncio.gather(said(asked), said(asked))
    assert len(raw.bodies) == 5


def test_the_environment_names_endpoint_key_and_model(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://hosted.example/v1")
    assert OpenAIModel("x").base_url == "https://hosted.example/v1"
    monkeypatch.setenv("PARLEY_MODEL_URL", "http://localhost:11434/v1/")
    monkeypatch.setenv("PARLEY_MODEL", "qwen3:8b")
    chosen = OpenAIModel()
    assert (chosen.base_url, chosen.name) == ("http://localhost:11434/v1", "qwen3:8b")


async def test_a_request_has_each_option_that_is_given_and_no_other(raw) -> None:
    ended = [{"raw": {"choices": each}} for each in (None, [{"delta": {}, "finish_reason": None}])]
    raw.will(events({"finish": "length"}, *ended))
    given = {"messages": [], "temperature": 0.0, "max_tokens": 7, "model": "other"}
    assert (await said(model(raw)))[-1].finish_reason == "length"
    await said(model(raw), ModelRequest(**given))
    always = {"stream": True, "stream_options": {"include_usage": True}}
    assert raw.bodies == [
        {"model": "qwen3:8b", "messages": ASKED.messages, **always},
        {**given, **always},
    ]


@pytest.mark.parametrize(("status", "times"), [(409, 2), (429, 2), (500, 2), (410, 1), (430, 1)])
async def test_only_a_temporary_failure_is_asked_again(raw, status, times) -> None:
    raw.will(refusal(status))
    with pytest.raises(ModelFailed):
        await said(model(raw, retries=1))
    assert len(raw.bodies) == times


async def test_a_reply_may_have_exactly_the_limit_and_calls_count(raw, monkeypatch) -> None:
    monkeypatch.setattr(openai_model, "MAX_REPLY", 1000)
    deltas = [named("one", index=index) for index in range(11)]
    raw.will(*[events(*deltas[:count], {"finish": "tool_calls"}) for count in (10, 11)])
    found = calls(await said(model(raw)))
    assert found == [(f"call_{number}", "one", "{}") for number in range(1, 11)]
    with pytest.raises(ModelFailed, match="more than 1,000 characters"):
        await said(model(raw))
