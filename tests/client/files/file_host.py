"""A scripted server for an agent's file transfer: each test sets the faults, down to the byte."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.scripted_server import Exchange, ScriptedServer, card, scripted

TRANSFER = "urn:parley:file-transfer:v1"


class FileHost:
    """Files in memory, and the faults of the next requests.

    ``takes`` lists the bytes that each next upload accepts before the connection breaks, ``gives``
    the bytes that each next download sends. With ``acknowledges`` an upload stores at most this
    many bytes, and reports success. ``ranges``: the server supports ranges; ``tag`` is the prefix
    of its entity tags. While it ``hangs``, no upload is answered. With a ``token`` the server
    requires this token to create and send files, and counts ``refused`` requests.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self.takes: list[int] = []
        self.gives: list[int] = []
        self.acknowledges: int | None = None
        self.ranges = True
        self.hangs = False
        self.tag = ""
        self.token: str | None = None
        self.refused = 0
        self.params: dict[str, Any] | None = {"maxBytes": 10_000_000, "inlineBytes": 1000}
        self.messages: list[dict[str, Any]] = []
        self.server: ScriptedServer

    @property
    def url(self) -> str:
        return self.server.url

    def put(self, content: bytes, name: str = "a.bin", id: str = "f") -> str:
        """Store a file, and return its address."""
        self.files[id] = {"content": content, "complete": True, "filename": name}
        return f"{self.url}/files/{id}?sig=s"

    async def handle(self, exchange: Exchange) -> None:
        match exchange.method, exchange.path.split("/")[1:]:
            case ("GET", ["files", _]) | ("POST", ["files"]) if not self._knows(exchange):
                self.refused += 1
                await exchange.json({}, status=401, www_authenticate="Bearer")
            case "GET", ["files", id]:
                await self._get(exchange, self.files.get(id))
            case "GET", _:
                await exchange.json(self._card())
            case "POST", ["files"]:
                await self._create(exchange)
            case "POST", _:
                message = exchange.params["message"]
                self.messages.append(message)
                reply = {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "ok"}]}
                await exchange.result({"message": reply})
            case "PATCH", ["files", id]:
                await self._patch(exchange, self.files.get(id))
            case "HEAD", ["files", id]:
                await self._state(exchange, self.files[id], 200)

    def _knows(self, exchange: Exchange) -> bool:
        given = exchange.headers.get("authorization")
        return self.token is None or given == f"Bearer {self.token}"

    def _card(self) -> dict[str, Any]:
        value = card(self.url)
        if self.params is not None:
            extension = {"uri": TRANSFER, "params": {"uploadUrl": f"{self.url}/files"}}
            extension["params"] |= self.params
            value["capabilities"]["extensions"] = [extension]
        return value

    async def _create(self, exchange: Exchange) -> None:
        id = f"u{len(self.files)}"
        self.files[id] = {"content": b"", "complete": False, **json.loads(exchange.body)}
        where = f"{self.url}/files/{id}"
        await exchange.json(
            {"id": id, "url": f"{where}?sig=d", "uploadUrl": f"{where}?sig=u", "expiresAt": "x"},
            status=201,
        )

    async def _patch(self, exchange: Exchange, file: dict[str, Any] | None) -> None:
        if file is None:
            await exchange.json({"error": {"message": "no such upload"}}, status=404)
            return
        if self.hangs:
            await asyncio.Event().wait()
        if int(exchange.headers["upload-offset"]) != len(file["content"]) or file["complete"]:
            await self._state(exchange, file, 409)
            return
        body = exchange.body
        if self.acknowledges is not None:
            file["content"] = body[: self.acknowledges]
            await self._state(exchange, file, 204)
            return
        cut = self.takes.pop(0) if self.takes else None
        file["content"] += body if cut is None else body[:cut]
        size = len(file["content"])
        whole = cut is None or cut >= len(body)
        if size == file.get("size") or (whole and "upload-complete" in exchange.headers):
            file["complete"] = True
        if cut is None:
            await self._state(exchange, file, 204)
        else:
            exchange.reset()

    async def _state(self, exchange: Exchange, file: dict[str, Any], status: int) -> None:
        await exchange.head(
            status,
            upload_offset=str(len(file["content"])),
            upload_complete="?1" if file["complete"] else "?0",
            **({} if status == 204 else {"content_length": "0"}),
        )

    async def _get(self, exchange: Exchange, file: dict[str, Any] | None) -> None:
        if file is None:
            await exchange.json({}, status=404)
            return
        content = file["content"]
        tag = f'"{self.tag}{hashlib.sha256(content).hexdigest()[:8]}"'
        headers = {
            "etag": tag,
            "content_type": "application/x-bin",
            "content_disposition": f'attachment; filename="{file["filename"]}"',
        }
        begin, status = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", exchange.headers.get("range", ""))
        if asked and self.ranges and exchange.headers.get("if-range") in (None, tag):
            begin, status = int(asked[1]), 206
            headers["content_range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        body = content[begin:]
        await exchange.head(status, content_length=str(len(body)), **headers)
        if self.gives:
            await exchange.raw(body[: self.gives.pop(0)])
            exchange.hang_up()
        else:
            await exchange.raw(body)


@asynccontextmanager
async def file_host() -> AsyncIterator[FileHost]:
    """Serve a file host."""
    host = FileHost()
    async with scripted(host.handle) as server:
        host.server = server
        yield host
