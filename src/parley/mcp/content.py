"""Conversion between the content of MCP results and A2A parts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import msgspec
from mcp import types

from parley.agent.tools.tool import ToolResult, failed
from parley.model.parts import Part


def result_of(result: types.CallToolResult, *, max_bytes: int, tool: str) -> ToolResult:
    """Return the result of a call. An oversized result becomes an error."""
    size = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())
    if size > max_bytes:
        return failed(f"the result of {tool} has {size:,} bytes; the limit is {max_bytes:,}")
    parts = tuple(part_of(block) for block in result.content)
    data = result.structured_content
    if data is not None and not any(part.has_data for part in parts):
        parts += (Part(data=data, media_type="application/json"),)
    return ToolResult(parts=parts, data=data, is_error=result.is_error)


def part_of(block: Any) -> Part:
    """Return a block of content as a part: text, a file, or a reference to a file."""
    match block:
        case types.TextContent():
            return Part(text=block.text)
        case types.ImageContent() | types.AudioContent():
            return _file(block.data, block.mime_type)
        case types.EmbeddedResource(resource=types.TextResourceContents() as text):
            return Part(text=text.text, media_type=text.mime_type or "", filename=_name(text.uri))
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return _file(blob.blob, blob.mime_type or "", _name(blob.uri))
        case types.ResourceLink():
            return Part(url=str(block.uri), media_type=block.mime_type or "", filename=block.name)
    return Part(text=str(block))


def blocks_of(parts: Iterable[Part]) -> list[types.ContentBlock]:
    """Return parts as content of a result."""
    return [_block(part) for part in parts]


def _block(part: Part) -> types.ContentBlock:
    if isinstance(part.text, str):
        return types.TextContent(text=part.text)
    if part.url:
        name = part.filename or _name(part.url) or "file"
        return types.ResourceLink(uri=part.url, name=name, mime_type=part.media_type or None)
    if isinstance(part.raw, bytes):
        data, kind = base64.b64encode(part.raw).decode(), part.media_type
        if kind.startswith("image/"):
            return types.ImageContent(data=data, mime_type=kind)
        if kind.startswith("audio/"):
            return types.AudioContent(data=data, mime_type=kind)
        uri = f"attachment:///{part.filename or 'file'}"
        blob = types.BlobResourceContents(
            uri=uri, blob=data, mime_type=kind or "application/octet-stream"
        )
        return types.EmbeddedResource(resource=blob)
    return types.TextContent(text=msgspec.json.encode(part.data).decode())


def _file(data: str, media_type: str, filename: str = "") -> Part:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Part(text=f"a file of the type {media_type!r} that is not valid base64")
    return Part(raw=raw, media_type=media_type, filename=filename)


def _name(uri: object) -> str:
    return str(uri).partition("?")[0].rstrip("/").rpartition("/")[2][:255]
