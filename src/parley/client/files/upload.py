"""The content of a file, and its upload in chunks, continued after a broken connection."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import mimetypes
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urljoin

import msgspec

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
from parley.client.bindings.request_auth import NOTHING, RequestAuth, override, refusal_in
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    Disconnected,
    FileLimitExceeded,
    FileMismatch,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.client.files.stream import Progress
from parley.client.retry import LONGEST_WAIT, Retry, is_worth_repeating, repeat
from parley.model.backoff import seconds_of
from parley.model.errors import InvalidAgentResponseError, an

# -- content ----------------------------------------------------------------------------------

PIECE = 4 * 1024 * 1024
"""The number of bytes that are kept in memory, and sent again after a broken connection."""

OCTETS = "application/octet-stream"

Uploadable = str | Path | bytes | BinaryIO | AsyncIterable[bytes] | Iterable[bytes]
"""A path (also as a string), bytes, an open binary file, or an iterator of bytes."""

_END: Any = object()


class Content(msgspec.Struct, frozen=True):
    """A file to send: its bytes in chunks, its name and media type, and its size if known."""

    pieces: AsyncIterator[bytes]
    filename: str
    media_type: str
    size: int | None = None
    sha256: str = ""


async def content_of(given: Uploadable, *, filename: str = "", media_type: str = "") -> Content:
    """Return a caller's value as content to send. An iterator is not read yet.

    Raises ``OSError`` for a file that cannot be read, ``TypeError`` for any other type.
    """
    size, digest = None, ""
    if isinstance(given, str | Path):
        path = Path(given)
        filename = filename or path.name
        size, digest = await asyncio.to_thread(_measure_path, path)
        pieces = _of_path(path)
    elif isinstance(given, bytes | bytearray | memoryview):
        whole = bytes(given)
        size = len(whole)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(whole).hexdigest())
        pieces = _of_bytes(whole)
    elif hasattr(given, "read"):
        file = cast("BinaryIO", given)
        filename = filename or _name_of(file)
        size, digest = await asyncio.to_thread(_measure_file, file)
        pieces = _of_file(file)
    elif isinstance(given, AsyncIterable):
        pieces = _regrouped(given)
    elif isinstance(given, Iterable):
        pieces = _regrouped(_in_thread(iter(given)))
    else:
        raise TypeError(
            f"{an(type(given).__name__)} cannot be uploaded; use a path, bytes, a file open "
            "for reading in binary, or an iterator of bytes"
        )
    return Content(pieces, filename, media_type or guess_type(filename), size, digest)


def guess_type(filename: str) -> str:
    """Return the media type for a file name."""
    return mimetypes.guess_type(filename)[0] or OCTETS


def _measure_path(path: Path) -> tuple[int | None, str]:
    """Return the size and the digest of a file, without reading pipes and devices."""
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return None, ""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size, hashlib.file_digest(file, "sha256").hexdigest()


def _measure_file(file: BinaryIO) -> tuple[int | None, str]:
    """Return the size and the digest of the rest of an open file, if it can seek."""
    try:
        if not file.seekable():
            return None, ""
        begin = file.tell()
        hashed = hashlib.sha256()
        size = 0
        while block := _bytes_only(file.read(PIECE)):
            hashed.update(block)
            size += len(block)
        file.seek(begin)
    except (AttributeError, io.UnsupportedOperation):
        return None, ""
    return size, hashed.hexdigest()


def _name_of(file: BinaryIO) -> str:
    name = getattr(file, "name", "")
    return Path(name).name if isinstance(name, str) and not name.startswith("<") else ""


async def _of_bytes(whole: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(whole), PIECE):
        yield whole[begin : begin + PIECE]


async def _of_path(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        async for piece in _of_file(file):
            yield piece
    finally:
        file.close()


async def _of_file(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := _bytes_only(await asyncio.to_thread(file.read, PIECE)):
        yield piece


async def _in_thread(items: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (item := await asyncio.to_thread(next, items, _END)) is not _END:
        yield item


async def _regrouped(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in chunks of a useful size."""
    pending = bytearray()
    async for chunk in chunks:
        pending += _bytes_only(chunk)
        while len(pending) >= PIECE:
            yield bytes(pending[:PIECE])
            del pending[:PIECE]
    if pending:
        yield bytes(pending)


def _bytes_only(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"a file is made of bytes, not of {type(value).__name__}: open it with mode 'rb'"
        )
    return bytes(value)


# -- upload -----------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

SLICE = 64 * 1024
"""The number of bytes that are passed to the connection at once."""

MAX_ANSWER = 64 * 1024


class Created(msgspec.Struct, frozen=True, rename="camel"):
    """A new file on a server: its address for readers, and the address to write it to."""

    id: str
    url: str
    upload_url: str


class Upload:
    """An upload in chunks, to a server that reports its progress.

    ``create_headers`` have the caller's credentials, in addition to those in ``auth``; the address
    to write to is signed and needs none. ``idle`` bounds the seconds without progress.
    """

    def __init__(
        self,
        http: HttpTransport,
        address: str,
        create_headers: Mapping[str, str],
        *,
        auth: RequestAuth | None = None,
        retry: Retry,
        idle: float | None,
        progress: Progress | None = None,
    ) -> None:
        self._http = http
        self._address = address
        self._create_headers = create_headers
        self._auth = auth
        self._retry = retry
        self._idle = idle
        self._progress = progress
        self._size: int | None = None

    async def send(self, content: Content) -> Created:
        """Send the content, and return the new file.

        Raises ``FileLimitExceeded``, ``FileMismatch`` for a file that changes meanwhile, and other
        errors of type ``ClientError``.
        """
        self._size = content.size
        created = await repeat(
            lambda: self._create(content), self._retry, safe=True, name="create a file"
        )
        offset = 0
        hashed = hashlib.sha256()
        async for piece in content.pieces:
            is_last = content.size is not None and offset + len(piece) == content.size
            if content.size is not None and offset + len(piece) > content.size:
                raise _changed(content)
            hashed.update(piece)
            await self._send_piece(created.upload_url, offset, piece, is_last=is_last)
            offset += len(piece)
        if content.size is not None and offset < content.size:
            raise _changed(content)
        if content.sha256 and hashed.hexdigest() != content.sha256:
            raise _changed(content)
        if content.size is None:
            await self._send_piece(created.upload_url, offset, b"", is_last=True)
        return created

    async def _create(self, content: Content) -> Created:
        described: dict[str, Any] = {"filename": content.filename, "mediaType": content.media_type}
        if content.size is not None:
            described["size"] = content.size
        if content.sha256:
            described["sha256"] = content.sha256
        may_ask, auth = True, self._auth
        while True:
            given = await auth.parameters(None) if auth is not None else NOTHING
            headers = {
                **override(self._create_headers, given.headers),
                "Content-Type": "application/json",
                "Accept": "application/json",
            }
            url, content_of = given.add_to(self._address), msgspec.json.encode(described)
            async with self._http.open(
                "POST", url, headers, content_of, timeout=self._idle
            ) as answer:
                if answer.status in (401, 403) and may_ask and auth is not None:
                    may_ask = False
                    if await auth.answer(refusal_in(answer.status, answer.headers), None, given):
                        continue
                if answer.status not in (200, 201):
                    raise await _failure(answer)
                body = await answer.read(MAX_ANSWER)
                break
        try:
            created = msgspec.json.decode(body, type=Created)
        except msgspec.MsgspecError as error:
            raise InvalidAgentResponseError(
                f"{redacted(self._address)} did not return the address to write to: {error}"
            ) from None
        return msgspec.structs.replace(
            created,
            url=urljoin(self._address, created.url),
            upload_url=urljoin(self._address, created.upload_url),
        )

    async def _send_piece(self, url: str, begin: int, piece: bytes, *, is_last: bool) -> None:
        """Send a chunk until the server has all of it."""
        at, end = begin, begin + len(piece)
        failures, reached = 0, begin
        while True:
            try:
                sent_from = at
                at = await self._patch(url, at, memoryview(piece)[at - begin :], is_last=is_last)
                if at == end:
                    return
                if at == sent_from:
                    raise _took_nothing(url)
            except ClientError as error:
                is_conflict = isinstance(error, UnexpectedStatus) and error.status == 409
                wished: float | None = getattr(error, "retry_after", None)
                if (
                    failures >= self._retry.streams
                    or not (is_conflict or is_worth_repeating(error, safe=True))
                    or (wished or 0.0) > LONGEST_WAIT
                ):
                    raise
                pause = self._retry.pause(failures) if wished is None else wished
                failures += 1
                logger.info("%s; asking for the progress of the upload in %.2f s", error, pause)
                await asyncio.sleep(pause)
                at, is_complete = await repeat(
                    lambda: self._ask(url),
                    self._retry,
                    safe=True,
                    name="ask for the progress of an upload",
                    await_restart=True,
                )
                if at == end and is_last and is_complete:
                    return
                if at == end and not is_last:
                    return
            if at > reached:
                failures, reached = 0, at
            if not begin <= at <= end:
                raise FileMismatch(
                    f"{redacted(url)} has {at:,} bytes of the file, but has acknowledged {begin:,} "
                    "before; upload it again"
                )

    async def _patch(self, url: str, at: int, rest: memoryview, *, is_last: bool) -> int:
        """Send bytes at an offset. Return the server's new offset."""
        headers = {
            "Upload-Offset": str(at),
            "Content-Type": "application/offset+octet-stream",
            "Content-Length": str(len(rest)),
        }
        if is_last:
            headers["Upload-Complete"] = "?1"
        loop = asyncio.get_running_loop()
        failed: list[Exception] = []
        try:
            async with asyncio.timeout(self._idle) as deadline:

                def moved(sent: int) -> None:
                    if self._idle is not None and not deadline.expired():
                        deadline.reschedule(loop.time() + self._idle)
                    if self._progress is not None:
                        try:
                            self._progress(at + sent, self._size)
                        except Exception as error:
                            failed.append(error)
                            raise

                body = _slices(rest, moved) if rest else b""
                async with self._http.open("PATCH", url, headers, body) as answer:
                    if answer.status not in (200, 201, 204):
                        raise await _failure(answer)
                    reached = _offset_of(answer, default=at + len(rest))
        except TimeoutError:
            raise _took_nothing(url, f" for {self._idle:g} s") from None
        except ClientError:
            if not failed:
                raise
        if failed:  # the HTTP library reports it as a broken connection
            raise failed[0]
        return reached

    async def _ask(self, url: str) -> tuple[int, bool]:
        """Return the server's offset, and whether the file is complete."""
        async with self._http.open("HEAD", url, {}, None, timeout=self._idle) as answer:
            if answer.status not in (200, 204):
                raise await _failure(answer)
            return _offset_of(answer), answer.headers.get("upload-complete") == "?1"


async def _slices(rest: memoryview, moved: Any) -> AsyncIterator[bytes]:
    for begin in range(0, len(rest), SLICE):
        piece = bytes(rest[begin : begin + SLICE])
        yield piece
        moved(begin + len(piece))


def _offset_of(answer: OpenResponse, default: int | None = None) -> int:
    value = answer.headers.get("upload-offset", "")
    if value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if default is not None and not value:
        return default
    raise InvalidAgentResponseError(
        f"{redacted(answer.url)} did not return the progress of the upload (Upload-Offset)"
    )


async def _failure(answer: OpenResponse) -> ClientError:
    """Return the error for a rejected upload, with the server's message if it has one."""
    status, where = answer.status, redacted(answer.url)
    try:
        said = _words_of(await answer.read(MAX_ANSWER))
    except ResponseTooLarge:
        said = ""
    reason = f": {said}" if said else ""
    match status:
        case 401 | 403:
            return AuthenticationRequired(
                f"{where} rejects the upload{reason or ': it wants (other) credentials'}",
                status=status,
                challenge=answer.headers.get("www-authenticate", ""),
            )
        case 413:
            return FileLimitExceeded(f"{where} does not accept files of this size{reason}")
        case 404 | 410:
            text = f"{where} does not know the upload (any more); begin again{reason}"
        case _:
            text = f"{where} answered {status} to an upload{reason}"
    return UnexpectedStatus(
        text, status=status, retry_after=seconds_of(answer.headers.get("retry-after"))
    )


def _words_of(body: bytes) -> str:
    """Return the message in the body of an error."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return ""
    for name in ("error", "message", "detail", "title"):
        if isinstance(value, dict):
            found = value.get(name, value if name == "error" else None)
            if isinstance(found, str):
                return found[:500]
            value = found if isinstance(found, dict) else value
    return ""


def _took_nothing(url: str, how_long: str = "") -> Disconnected:
    return Disconnected(f"{redacted(url)} accepted no bytes of the file{how_long}")


def _changed(content: Content) -> FileMismatch:
    return FileMismatch(
        f"{content.filename[:100] or 'the file'} changed while it was uploaded; upload it again"
    )
