"""Upload one file over HTTP in pieces, and continue where a connection broke."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urljoin

import msgspec

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
from parley.client.bindings.request_auth import NOTHING, RequestAuth, refusal_in
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    Disconnected,
    FileLimitExceeded,
    FileMismatch,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.client.files.content import Content
from parley.client.files.stream import Progress
from parley.client.headers import override
from parley.client.retry import LONGEST_WAIT, Retry, is_worth_repeating, repeat
from parley.model.backoff import seconds_of
from parley.model.errors import InvalidAgentResponseError

logger = logging.getLogger(__name__)

SLICE = 64 * 1024
"""The bytes that are handed to the connection at once."""

MAX_ANSWER = 64 * 1024


class Created(msgspec.Struct, frozen=True, rename="camel"):
    """A new file on a server: its address for readers, and the one to write it at."""

    id: str
    url: str
    upload_url: str


class Upload:
    """One upload, to a server that takes it in pieces and tells how far it got.

    ``create_headers`` have the caller's credentials, beside those of ``auth``; the address to write
    at is signed and needs none. ``idle`` bounds the seconds without progress.
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
        """Send all of it, and return the new file.

        Raises ``FileLimitExceeded``, ``FileMismatch`` for a file that changes meanwhile, and other
        ``ClientError``.
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
                f"{redacted(self._address)} did not say where to write the file: {error}"
            ) from None
        return msgspec.structs.replace(
            created,
            url=urljoin(self._address, created.url),
            upload_url=urljoin(self._address, created.upload_url),
        )

    async def _send_piece(self, url: str, begin: int, piece: bytes, *, is_last: bool) -> None:
        """Send a piece until the server has all of it."""
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
                logger.info("%s; asking how far the upload got in %.2f s", error, pause)
                await asyncio.sleep(pause)
                at, is_complete = await repeat(
                    lambda: self._ask(url),
                    self._retry,
                    safe=True,
                    name="ask for the state of an upload",
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
                    f"{redacted(url)} has {at:,} bytes of the file, and {begin:,} were "
                    "acknowledged before; upload it again"
                )

    async def _patch(self, url: str, at: int, rest: memoryview, *, is_last: bool) -> int:
        """Send bytes at an offset, and return the offset that the server has reached."""
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
        if failed:  # the HTTP library takes it for a broken connection
            raise failed[0]
        return reached

    async def _ask(self, url: str) -> tuple[int, bool]:
        """Return the offset that the server has reached, and whether the file is complete."""
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
        f"{redacted(answer.url)} did not say how far the upload got (Upload-Offset)"
    )


async def _failure(answer: OpenResponse) -> ClientError:
    """Return the error for a refusal, with the server's own words if it has some."""
    status, where = answer.status, redacted(answer.url)
    try:
        said = _words_of(await answer.read(MAX_ANSWER))
    except ResponseTooLarge:
        said = ""
    reason = f": {said}" if said else ""
    match status:
        case 401 | 403:
            return AuthenticationRequired(
                f"{where} refuses the upload{reason or ': it wants (other) credentials'}",
                status=status,
                challenge=answer.headers.get("www-authenticate", ""),
            )
        case 413:
            return FileLimitExceeded(f"{where} takes no file of this size{reason}")
        case 404 | 410:
            text = f"{where} knows no such upload, or no more; begin again{reason}"
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
    return Disconnected(f"{redacted(url)} took nothing of the file{how_long}")


def _changed(content: Content) -> FileMismatch:
    return FileMismatch(
        f"{content.filename[:100] or 'the file'} changed while it was uploaded; upload it again"
    )
