"""The files of one agent: uploads that its card declares, downloads, and their credentials.

``RemoteAgent`` has the public methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import msgspec

from parley.client.auth.authorizer import Authorizer
from parley.client.bindings.http import HttpTransport
from parley.client.errors import ClientError, FileLimitExceeded
from parley.client.files.download import Download, FetchRoute, Limits
from parley.client.files.stream import Chunks, FileFacts, FileStream, Progress, open_part
from parley.client.files.upload import Upload, Uploadable, content_of
from parley.client.message import Sendable
from parley.client.origin import Origin
from parley.client.retry import Retry
from parley.model.cards import AgentCard
from parley.model.extensions import FILE_TRANSFER
from parley.model.parts import Artifact, Message, Part
from parley.model.tasks import Task
from parley.security.egress import Egress
from parley.security.networks import is_loopback

MAX_INLINE = 7 * 1024 * 1024
"""The maximum size of files in a message: as base64 below the usual server limit of 10 MiB."""

Holder = Part | Artifact | Message | Task
"""The objects that contain files."""


class TransferParams(msgspec.Struct, frozen=True, rename="camel"):
    """An agent's declaration of its file transfer."""

    upload_url: str
    max_bytes: int | None = None
    inline_bytes: int | None = None


class AgentFiles:
    """Uploads to one agent, and downloads of its files.

    The caller's credentials are sent to the agent's own origins and to origins that the caller
    trusts. From other origins files are fetched without credentials, and only from public
    addresses, unless ``egress`` allows more.
    """

    def __init__(
        self,
        http: HttpTransport,
        auth: Authorizer,
        *,
        card: Callable[[], AgentCard],
        base_url: str,
        origins: Sequence[Origin],
        egress: Egress,
        retry: Retry,
        idle: float | None,
    ) -> None:
        self._http = http
        self._auth = auth
        self._card = card
        self._base_url = base_url
        self._origins = tuple(origins)
        self._egress = egress
        self._retry = retry
        self._idle = idle
        self._guarded: HttpTransport | None = None

    async def aclose(self) -> None:
        """Close the connections to other servers. Idempotent."""
        if self._guarded is not None and self._guarded is not self._http:
            await self._guarded.close()

    @property
    def http(self) -> HttpTransport:
        """The connections to the agent's own origins."""
        return self._http

    @property
    def auth(self) -> Authorizer:
        """The caller's credentials."""
        return self._auth

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The agent's own origins."""
        return self._origins

    @property
    def card(self) -> AgentCard:
        """The agent's card."""
        return self._card()

    # -- card ----------------------------------------------------------------------------------

    @property
    def params(self) -> TransferParams | None:
        """The card's declaration, ``None`` for an agent without file transfer."""
        for extension in self._card().capabilities.extensions:
            if extension.uri == FILE_TRANSFER:
                try:
                    return msgspec.convert(extension.params or {}, TransferParams)
                except msgspec.ValidationError:
                    return None
        return None

    @property
    def inline_bytes(self) -> int | None:
        """The largest file for a message, ``None`` for an agent without file transfer."""
        params = self.params
        if params is None:
            return None
        return MAX_INLINE if params.inline_bytes is None else params.inline_bytes

    @property
    def _name(self) -> str:
        return repr(self._card().name[:100])

    # -- credentials -------------------------------------------------------------------------

    def _route(self, url: str) -> FetchRoute:
        """Return the route to an address: with credentials to own origins, guarded to others."""
        origin = Origin.of(url)
        if any(own.covers(origin) for own in self._origins):
            if not self._auth.credentials.allows(origin):
                return FetchRoute(self._http, url, {}, is_own=True)
            parameters = self._auth.credentials.agent_parameters(origin, self._card())
            return FetchRoute(
                self._http,
                parameters.add_to(url),
                parameters.headers,
                is_own=True,
                auth=self._auth.at(origin),
            )
        if self._guarded is None:
            egress = self._egress
            if any(is_loopback(own.host) for own in self._origins):
                egress = msgspec.structs.replace(egress, private=True)
            self._guarded = self._http.guarded(egress)
        return FetchRoute(self._guarded, url, {}, is_own=False)

    # -- uploads -------------------------------------------------------------------------------

    async def upload(
        self,
        given: Uploadable,
        *,
        filename: str = "",
        media_type: str = "",
        progress: Progress | None = None,
    ) -> Part:
        """Upload a file, and return a part that refers to it."""
        params = self.params
        if params is None:
            raise ClientError(
                f"{self._name} declares no file transfer ({FILE_TRANSFER}): put the file where it "
                "can fetch it, and send Part(url=...)"
            )
        if isinstance(given, str | Path):  # checked before the file is read
            self._check_size(await _size_of(Path(given)), given, params)
        content = await content_of(given, filename=filename, media_type=media_type)
        self._check_size(content.size or 0, given, params)
        url = urljoin(self._base_url, params.upload_url)
        try:
            route = self._route(url)
        except ValueError as error:
            raise ClientError(
                f"{self._name} accepts files at {url[:200]!r}; expected {error}"
            ) from None
        if not route.is_own and self._auth.credentials:
            raise self._auth.credentials.refusal(self._card().name, [Origin.of(url)])
        upload = Upload(
            route.http,
            route.url,
            route.headers,
            auth=route.auth,
            retry=self._retry,
            idle=self._idle,
            progress=progress,
        )
        created = await upload.send(content)
        return Part(url=created.url, filename=content.filename, media_type=content.media_type)

    def _check_size(self, size: int, given: Any, params: TransferParams) -> None:
        if params.max_bytes is not None and size > params.max_bytes:
            raise FileLimitExceeded(
                f"{_described(given)} has {size:,} bytes; {self._name} takes files of up to "
                f"{params.max_bytes:,}: send less, or put it where the agent can fetch it and send "
                "Part(url=...)"
            )

    async def by_reference(
        self, message: Sendable | None, files: Sequence[str | Path | bytes | Part]
    ) -> tuple[Sendable | None, Sequence[str | Path | bytes | Part]]:
        """Return a message's content and files, after uploading the files that are too large for
        it.

        Ready parts are unchanged. Raises ``FileLimitExceeded``, before anything is uploaded, if a
        file is too large and the agent declares no file transfer.
        """
        contents = list(message) if isinstance(message, list | tuple) else [message]
        given: list[Any] = [*contents, *(Path(f) if isinstance(f, str) else f for f in files)]
        sizes = [await _size_of(item) for item in given]
        params = self.params
        inline = (
            MAX_INLINE if params is None or params.inline_bytes is None else params.inline_bytes
        )
        chosen: list[int] = []
        left = MAX_INLINE
        for index, size in enumerate(sizes):
            if size > min(inline, left):
                chosen.append(index)
            else:
                left -= size
        if not chosen:
            return message, files
        if params is None:
            raise FileLimitExceeded(
                f"{_described(given[chosen[0]])} has {sizes[chosen[0]]:,} bytes; a message carries "
                f"files of {MAX_INLINE:,} bytes in all, and {self._name} declares no file transfer "
                f"({FILE_TRANSFER}). Put it where the agent can fetch it and send Part(url=...), "
                "or, if the agent takes larger messages, send Part(raw=...)"
            )
        for index in chosen:
            self._check_size(sizes[index], given[index], params)
        for index in chosen:
            given[index] = await self.upload(given[index])
        count = len(contents)
        sendable: Any = given[:count] if isinstance(message, list | tuple) else given[0]
        return sendable, given[count:]

    # -- downloads -----------------------------------------------------------------------------

    def open(self, part: Part, *, progress: Progress | None = None) -> FileStream:
        """Return the bytes of a part as a stream. The first read sends the request."""

        def fetch(url: str, facts: FileFacts) -> Chunks:
            return Download(
                url,
                facts,
                route=self._route,
                retry=self._retry,
                limits=Limits(idle=self._idle),
                progress=progress,
            ).chunks()

        return open_part(part, fetch)

    async def download(
        self, holder: Holder, to: str | Path | None, *, progress: Progress | None = None
    ) -> list[Path]:
        """Write the files of ``holder`` to disk, and return their paths.

        ``to`` is the path of the file if ``holder`` is a part, else a folder.
        """
        target = Path() if to is None else Path(to)
        if isinstance(holder, Part):
            return [await self.open(holder, progress=progress).save(target)]
        await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        parts = file_parts(holder)
        return [await self.open(part, progress=progress).save(target) for part in parts]


def file_parts(holder: Holder) -> Iterator[Part]:
    """Yield the file parts of an object. A task's parts are in its artifacts."""
    if isinstance(holder, Part):
        yield holder
    elif isinstance(holder, Task):
        for artifact in holder.artifacts:
            yield from file_parts(artifact)
        if holder.status.message is not None:
            yield from file_parts(holder.status.message)
    else:
        yield from (part for part in holder.parts if part.is_file)


async def _size_of(content: object) -> int:
    """Return the number of bytes of content that would become a file in a message."""
    if isinstance(content, bytes | bytearray | memoryview):
        return len(content)
    if isinstance(content, Path):
        return (await asyncio.to_thread(content.stat)).st_size
    return 0


def _described(given: object) -> str:
    return str(given)[:200] if isinstance(given, str | Path) else "the given bytes"
