"""Conversion between contents of ADK and parts, and pauses of a run as questions to the caller.

Every pause of ADK is a function call in ``long_running_tool_ids``: a tool that needs approval, a
question of a node or of the model, a login, and a long-running tool whose result comes later.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from google.adk.events.event import Event
from google.genai import types

from parley.agent.turn import Turn
from parley.extensions.questions import schema_part
from parley.integrations.answers import (
    DoesNotFit,
    approval,
    ask_until,
    decision_in,
    fitting_answer,
    json_text,
    said_in,
)
from parley.integrations.message_files import input_of
from parley.llm.model import Json
from parley.model.parts import Message, Part

TEXT = "text/plain"


async def content_of(turn: Turn, message: Message) -> types.Content:
    """Return a message as user content; its files are read."""
    parts = []
    for each in await input_of(turn, message):
        if isinstance(each, str):
            parts.append(types.Part(text=each))
        else:
            blob = types.Blob(
                data=each.content, mime_type=each.media_type, display_name=each.filename or None
            )
            parts.append(types.Part(inline_data=blob))
    return types.Content(role="user", parts=parts)


def parts_of(content: types.Content | None) -> list[Part]:
    """Return a content as parts: texts and files, without thoughts and calls."""
    found = []
    for part in (content.parts or ()) if content is not None else ():
        if part.thought:
            continue
        if part.text:
            found.append(Part(text=part.text))
        elif (file := file_of(part)) is not None:
            found.append(file)
    return found


def file_of(part: types.Part, filename: str = "") -> Part | None:
    """Return a file of ADK as a part, ``None`` for anything else."""
    blob, data = part.inline_data, part.file_data
    if blob is not None and blob.data is not None:
        media_type = blob.mime_type or "application/octet-stream"
        name = filename or blob.display_name or f"file{mimetypes.guess_extension(media_type) or ''}"
        return Part(raw=blob.data, media_type=media_type, filename=name)
    if data is not None and data.file_uri and data.file_uri.startswith(("http://", "https://")):
        name = filename or data.display_name or ""
        return Part(url=data.file_uri, media_type=data.mime_type or "", filename=name)
    if filename and part.text is not None:
        return Part(raw=part.text.encode(), media_type=TEXT, filename=filename)
    return None


def adk_parts(parts: Sequence[Part]) -> list[types.Part]:
    """Return parts of an agent's answer as parts of ADK; data as JSON."""
    found = []
    for part in parts:
        media_type, name = part.media_type or "application/octet-stream", part.filename or None
        if part.raw is not None:
            blob = types.Blob(data=part.raw, mime_type=media_type, display_name=name)
            found.append(types.Part(inline_data=blob))
        elif part.url is not None:
            data = types.FileData(file_uri=part.url, mime_type=media_type, display_name=name)
            found.append(types.Part(file_data=data))
        elif text := json_text(part.data) if part.text is None else part.text:
            found.append(types.Part(text=text))
    return found


CONFIRMATION = "adk_request_confirmation"
INPUT = "adk_request_input"
CREDENTIAL = "adk_request_credential"
REMOTE_ANSWER = "parleyAnswer"
"""The member of a confirmation's payload for the answer to a question of another agent."""

ADK_HINT = "Please approve or reject the tool call"
"""The beginning of a hint that ADK generated itself."""


def open_calls(events: Iterable[Event]) -> list[types.FunctionCall]:
    """Return the unanswered calls of a run, in order."""
    found: dict[str, types.FunctionCall] = {}
    for event in events:
        if event.partial:
            continue
        if event.author == "user":
            for response in event.get_function_responses():
                found.pop(response.id or "", None)
        for call in event.get_function_calls():
            if call.id and call.id in (event.long_running_tool_ids or ()):
                found[call.id] = call
    return list(found.values())


async def answer_to(turn: Turn, call: types.FunctionCall, said: str) -> types.Part:
    """Ask the caller for the result of a call, and return the response of ADK.

    ``said`` is the agent's text about it, or an empty string.
    """
    asks = {CONFIRMATION: _confirmed, CREDENTIAL: _logged_in, INPUT: _answered}
    response = await asks.get(call.name or "", partial(_finished, said))(
        turn, call, dict(call.args or {})
    )
    return types.Part(
        function_response=types.FunctionResponse(id=call.id, name=call.name, response=response)
    )


async def _confirmed(turn: Turn, call: types.FunctionCall, arguments: Any) -> Json:
    wanted = arguments.get("toolConfirmation") or {}
    original = arguments.get("originalFunctionCall") or {}
    payload, hint = wanted.get("payload"), str(wanted.get("hint") or "")
    if isinstance(payload, Mapping) and REMOTE_ANSWER in payload:
        parts = [Part(text=hint)]
        if isinstance(payload.get("schema"), Mapping):
            parts.append(schema_part(payload["schema"]))
        answer = await turn.ask(parts, key=call.id)
        return {"confirmed": True, "payload": {REMOTE_ANSWER: said_in(answer)}}
    if payload is None and (not hint or hint.startswith(ADK_HINT)):
        decision = await approval(
            turn, str(original.get("name")), original.get("args") or {}, key=call.id or ""
        )
        return {"confirmed": decision.is_approved}
    return await _confirmed_with(turn, call, original, payload, hint)


async def _confirmed_with(
    turn: Turn, call: types.FunctionCall, original: Mapping[str, Any], payload: Any, hint: str
) -> Json:
    """Ask the question of a tool itself: yes or no, or a payload to complete."""
    tool = f"{original.get('name')}({json_text(original.get('args') or {})[:2000]})"
    text = f"{hint or 'May this tool be called?'}\n{tool}\nAnswer yes or no" + (
        "." if payload is None else f", or with data like {json_text(payload)}."
    )

    def read(answer: Message) -> Json:
        decision, data = decision_in(answer), said_in(answer)
        if decision is not None:
            return {"confirmed": decision.is_approved, "payload": payload}
        if isinstance(data, Mapping) and isinstance(data.get("confirmed"), bool):
            return {"confirmed": data["confirmed"], "payload": data.get("payload", payload)}
        if isinstance(data, Mapping) and set(data) == {"payload"}:
            data = data["payload"]
        if payload is not None and _fills(payload, data):
            return {"confirmed": True, "payload": data}
        raise DoesNotFit("That was neither yes nor no.")

    return await ask_until(
        turn, lambda problem: f"{problem} {text}".strip(), read, key=call.id or ""
    )


def _fills(payload: Any, data: Any) -> bool:
    """Return whether data completes a tool's payload: it has no other members."""
    if isinstance(payload, Mapping) and payload:
        return isinstance(data, Mapping) and bool(data) and set(data) <= set(payload)
    return data is not None and not isinstance(data, str)


async def _answered(turn: Turn, call: types.FunctionCall, arguments: Any) -> Json:
    schema = arguments.get("response_schema") or arguments.get("responseSchema")
    text = str(arguments.get("message") or "The agent needs an answer.")
    shown = []
    if arguments.get("payload") is not None:
        shown.append(Part(data=arguments["payload"], media_type="application/json"))
    if isinstance(schema, Mapping):
        shown.append(schema_part(schema))

    value = await ask_until(
        turn,
        lambda problem: [Part(text=f"{problem} {text}".strip()), *shown],
        lambda said: fitting(schema, said),
        key=call.id or "",
    )
    return {"result": value}


async def _finished(said: str, turn: Turn, call: types.FunctionCall, arguments: Any) -> Json:
    """Ask for the result of a long-running tool."""
    text = said or f"The tool {call.name} waits for its result."
    data = {"kind": "toolResult", "tool": call.name, "arguments": arguments}
    parts = [Part(text=text), Part(data=data, media_type="application/json")]
    value = said_in(await turn.ask(parts, key=call.id))
    return dict(value) if isinstance(value, Mapping) else {"result": value}


async def _logged_in(turn: Turn, call: types.FunctionCall, arguments: Any) -> Json:
    """Ask the caller to log in, and return ADK's configuration with the resulting address.

    The caller receives the address of the login, but no secret of the client.
    """
    config = arguments.get("authConfig") or arguments.get("auth_config") or {}
    exchanged = config.get("exchangedAuthCredential") or config.get("exchanged_auth_credential")
    oauth = (exchanged or {}).get("oauth2") or {}
    address = str(oauth.get("authUri") or oauth.get("auth_uri") or "")
    text = f"Log in at {address}" if address else f"The tool {call.name} needs a credential"
    text += ", and answer with the address that this leads to." if address else "."
    parts = [Part(text=text), Part(data={"kind": "login", "authUri": address})]
    answer = said_in(await turn.require_auth(parts, key=call.id))
    if isinstance(answer, Mapping):
        answer = answer.get("authResponseUri") or answer.get("auth_response_uri") or ""
    filled = {**oauth, "authResponseUri": str(answer)}
    return {**config, "exchangedAuthCredential": {**(exchanged or {}), "oauth2": filled}}


def fitting(schema: Any, answer: Message) -> Any:
    """Return an answer as a value of a schema. Raises ``DoesNotFit``."""
    said = said_in(answer)
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    try:
        return said if kind is None else fitting_answer(schema, answer, said)
    except DoesNotFit as error:
        raise DoesNotFit(f"That does not fit. {error}") from None
