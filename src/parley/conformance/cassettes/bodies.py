"""Bodies as tapes have them: JSON unfolded, streams frame by frame, other bytes in base64."""

from __future__ import annotations

import base64
import json
from typing import Any

from parley.conformance.cassettes.hiding import Hiding
from parley.wire.sse import SseParser

EVENT_STREAM = "text/event-stream"
FORM = "application/x-www-form-urlencoded"


def media_type(headers: dict[str, str]) -> str:
    """Return the media type in headers with names in lower case."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def written(body: bytes, kind: str, hiding: Hiding) -> dict[str, Any]:
    """Return a body as the members of a tape: none, ``json``, ``text`` or ``base64``."""
    if not body:
        return {}
    if kind.endswith(("/json", "+json")) or body[:1] in b"{[":
        try:
            return {"json": hiding.json(json.loads(body))}
        except (ValueError, RecursionError):
            pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    return {"text": hiding.form(text) if kind == FORM else hiding.text(text)}


def read(members: dict[str, Any]) -> bytes:
    """Return the body in the members of a tape."""
    if "json" in members:
        return json.dumps(members["json"], ensure_ascii=False).encode()
    if "base64" in members:
        return base64.b64decode(members["base64"])
    return str(members.get("text", "")).encode()


class Frames:
    """The frames of a stream while it is recorded: what each event had, in order."""

    def __init__(self, hiding: Hiding) -> None:
        self.frames: list[dict[str, Any]] = []
        self._hiding = hiding
        self._parser = SseParser()

    def feed(self, chunk: bytes) -> None:
        """Add the frames that a chunk completes."""
        for id, kind, data in self._parser.feed(chunk):
            frame: dict[str, Any] = {}
            if id is not None:
                frame["id"] = id
            if kind not in ("", "message"):
                frame["event"] = kind
            text = data.decode("utf-8", "replace")
            try:
                frame["data"] = self._hiding.json(json.loads(text))
            except (ValueError, RecursionError):
                frame["text"] = self._hiding.text(text)
            self.frames.append(frame)


def frame_bytes(frame: dict[str, Any]) -> bytes:
    """Return a frame of a tape as the bytes of a stream."""
    lines = [f"{name}: {frame[name]}" for name in ("id", "event") if name in frame]
    said = json.dumps(frame["data"], ensure_ascii=False) if "data" in frame else frame["text"]
    lines += [f"data: {line}" for line in said.split("\n")]
    return "\n".join(lines).encode() + b"\n\n"
