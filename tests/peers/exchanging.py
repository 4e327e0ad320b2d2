"""How each side performs the exchanges: a peer's client, our client, our command line."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

from parley.client import RemoteAgent, connect
from parley.client.errors import ClientError
from parley.model.errors import A2AError
from parley.model.parts import Message, Part, Role
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent

from . import official_caller
from .exchanges import CANCEL, CARD, FILE, QUESTION, REFUSAL, STREAM, Perform, Refused, Unexpected
from .official_caller import Official, Process


def by_exchanges(process: Process, url: str, binding: str, version: str) -> Perform:
    """Return a peer's client whose driver performs whole exchanges."""

    async def perform(command: Mapping[str, Any]) -> list[Any]:
        try:
            where = {"url": url, "binding": binding, "version": version}
            return [item async for item in process.items({**command, **where})]
        except official_caller.Refused as error:
            raise Refused(str(error)) from None

    return perform


def by_operations(peer: str, process: Process, where: tuple[str, str, str], json: str) -> Perform:
    """Return a peer's client that is driven by operations, in the JSON of 1.0 or of 0.3."""
    caller = Official(peer, process, *where)
    message = _message_1_0 if json == "1.0" else _message_0_3

    async def perform(command: Mapping[str, Any]) -> list[Any]:
        try:
            return await _perform(command)
        except official_caller.Refused as error:
            raise Refused(str(error)) from None

    async def _perform(command: Mapping[str, Any]) -> list[Any]:
        do = command["do"]
        if do == CARD:
            return [{"name": (await caller.call("card"))["name"]}]
        [first, *others] = command["texts"]
        request = message(first, command.get("file"))
        if do == STREAM:
            return [_item(event) async for event in caller.items("stream", request)]
        if do == CANCEL:
            async with aclosing(caller.items("stream", request)) as events:
                task = _inner(await anext(events))
                return [_item(await caller.call("cancel", {"id": task["id"]}))]
        answers = [_inner(await caller.call("send", request))]
        for text in others:
            request = message(text, None, task=answers[0]["id"], context=answers[0]["contextId"])
            answers.append(_inner(await caller.call("send", request)))
        return [_item(answer) for answer in answers]

    return perform


def _message_1_0(text: str, file: Any, task: str = "", context: str = "") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": text}]
    if file:
        media = {"mediaType": file["media_type"], "filename": file["name"]}
        parts.append({"raw": file["bytes"], **media})
    said: dict[str, Any] = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": parts}
    if task:
        said |= {"taskId": task, "contextId": context}
    return {"message": said, "configuration": {}}


def _message_0_3(text: str, file: Any, task: str = "", context: str = "") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"kind": "text", "text": text}]
    if file:
        inner = {"bytes": file["bytes"], "mimeType": file["media_type"], "name": file["name"]}
        parts.append({"kind": "file", "file": inner})
    said = {"kind": "message", "messageId": uuid4().hex, "role": "user", "parts": parts}
    if task:
        said |= {"taskId": task, "contextId": context}
    return {"message": said, "configuration": {"blocking": True}}


def _inner(event: Any) -> Any:
    """Return the value inside a result's wrapper in 1.0; 0.3 has no wrapper."""
    for kind in ("task", "message", "statusUpdate", "artifactUpdate"):
        if kind in event and "kind" not in event:
            return event[kind]
    return event


def _item(event: Any) -> dict[str, Any]:
    """Return the text and the state of an event or a response."""
    event = _inner(event)
    status = event.get("status") or {}
    if "artifact" in event:
        found = [event["artifact"]]
    elif event.get("artifacts"):
        found = event["artifacts"]
    elif "parts" in event:
        found = [event]
    else:
        # A status text counts as a reply only if the status asks.
        asks = str(status.get("state", "")).replace("_", "-").lower().endswith("input-required")
        found = [status["message"]] if asks and status.get("message") else []
    text = "".join(part.get("text", "") for one in found for part in one["parts"])
    return {"text": text, "state": status.get("state")}


def by_our_client(url: str, binding: str, version: str) -> Perform:
    """Return our client, in this process."""

    async def perform(command: Mapping[str, Any]) -> list[Any]:
        try:
            async with asyncio.timeout(30), connect(url, binding=binding, version=version) as agent:
                return await _by(agent, command)
        except (A2AError, ClientError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from None
        except TimeoutError:
            raise Unexpected("nothing more came for 30 seconds") from None

    return perform


async def _by(agent: RemoteAgent, command: Mapping[str, Any]) -> list[Any]:
    do = command["do"]
    if do == CARD:
        return [{"name": agent.card.name}]
    if do == REFUSAL:
        return [_told(await agent.get("nobody"))]
    [first, *others] = command["texts"]
    if do == STREAM:
        return [_piece(event) async for event in agent.stream(first)]
    if do == CANCEL:
        started = await agent.send(first, return_immediately=True)
        return [_told(await agent.cancel(started.id))]
    if do == FILE:
        file = command["file"]
        raw = base64.b64decode(file["bytes"])
        parts = (Part(text=first), Part(raw=raw, media_type=file["media_type"], filename="dot.png"))
        message = Message(message_id=uuid4().hex, role=Role.USER, parts=parts)
        return [_told(await agent.send(message))]
    answer = await agent.send(first)
    items = [_told(answer)]
    for text in others if do == QUESTION else ():
        if not answer.task:
            raise Unexpected(f"no task, but {answer.text!r}")
        answer = await agent.send(text, task=answer)
        items.append(_told(answer))
    return items


def _piece(event: Event) -> dict[str, Any]:
    if isinstance(event, TaskArtifactUpdateEvent):
        return {"text": event.artifact.text, "replaces": not event.append}
    if isinstance(event, Task):
        texts = [artifact.text for artifact in event.artifacts]
        return {"text": "".join(texts), "replaces": bool(texts)}
    return {"text": event.text if isinstance(event, Message) else ""}


def _printed(line: Any) -> dict[str, Any]:
    if "statusUpdate" in line:
        return {"text": ""}
    update = line.get("artifactUpdate")
    replaces = not update.get("append") if update else "artifacts" in line.get("task", {})
    return {"text": _item(line)["text"], "replaces": replaces}


def _told(answer: Any) -> dict[str, Any]:
    state = answer.state.value if answer.id else None
    return {"text": answer.text, "state": state}


def by_our_command_line(url: str, binding: str, version: str) -> Perform:
    """Return the ``parley`` command, in separate processes."""
    where = ["-a", url, "--transport", binding, "--a2a-version", version, "-o", "json"]

    async def parley(*words: str) -> list[Any]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley.cli", *words, *where),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, said = await asyncio.wait_for(process.communicate(), 60)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Unexpected(f"parley {' '.join(words)} did not end in 60 seconds") from None
        if process.returncode:
            raise Refused(said.decode().strip())
        if "--stream" in words:
            return [json.loads(line) for line in out.splitlines()]
        return [json.loads(out)]

    async def perform(command: Mapping[str, Any]) -> list[Any]:
        do = command["do"]
        if do == CARD:
            [card] = await parley("card", "get")
            return [{"name": card["name"]}]
        if do == REFUSAL:
            return await parley("task", "get", "nobody")
        [first, *others] = command["texts"]
        if do == STREAM:
            return [_printed(line) for line in await parley("send", "--stream", first)]
        if do == CANCEL:
            [started] = await parley("send", "--async", first)
            return [_item(*await parley("task", "cancel", started["task"]["id"]))]
        if do == FILE:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / command["file"]["name"]
                path.write_bytes(base64.b64decode(command["file"]["bytes"]))
                return [_item(*await parley("send", first, "--file", str(path)))]
        [answer] = await parley("send", first)
        items = [_item(answer)]
        for text in others:
            if "task" not in answer:
                raise Unexpected(f"no task, but {answer}")
            [again] = await parley("send", "--task-id", answer["task"]["id"], text)
            items.append(_item(again))
        return items

    return perform
