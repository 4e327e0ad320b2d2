"""Files over HTTP (``urn:parley:file-transfer:v1``): uploads that resume, downloads with ranges."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.files.file_store import DOWNLOAD, UPLOAD, UploadWriter
from parley.files.layout import FileRecord
from parley.files.objects import (
    DigestMismatch,
    FileError,
    FilesUnavailable,
    NoSuchFile,
    OffsetMismatch,
    TooManyBytes,
    TooManyUploads,
)
from parley.files.turn_files import OCTETS, SIGNATURE, address
from parley.model.errors import A2AError, InvalidParamsError, OverloadedError
from parley.model.service import ANONYMOUS, Caller
from parley.security.authorization import DOWNLOAD_FILE, UPLOAD_FILE, Access
from parley.server.address import route_path
from parley.server.dispatch import check_caller
from parley.server.endpoint import FILES, FileService
from parley.server.http.exchange import (
    AgentHandler,
    AgentRequests,
    NotJson,
    ServedEndpoint,
    requests_of,
)
from parley.server.http.paths import segments_of
from parley.server.http.responses import (
    NO_STORE,
    BodyTooLarge,
    ClientGone,
    Headers,
    base,
    read_body,
    refuse_method,
    reply,
    reply_with_message,
    reply_without_body,
)
from parley.server.limits import ConcurrencyLimiter
from parley.wire.json.syntax import without_bom

# -- ranges -----------------------------------------------------------------------------------

_RANGE = re.compile(rb"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*")
_ETAG = re.compile(rb'(?:W/)?"[^"]*"')


class ByteRange(NamedTuple):
    """The bytes from ``start`` up to ``end`` of a file."""

    start: int
    end: int


class Unsatisfiable(Exception):
    """The file has none of the bytes that were asked for."""


def range_of(headers: Mapping[bytes, bytes], size: int, etag: bytes) -> ByteRange | None:
    """Return the range of a GET request, ``None`` for the whole file.

    Several ranges, a malformed range, and a range of another version of the file (``If-Range``) are
    answered with the whole file. Raises ``Unsatisfiable``.
    """
    match = _RANGE.fullmatch(headers.get(b"range", b"").strip())
    if match is None or headers.get(b"if-range", etag).strip() != etag:
        return None
    first, last = match.groups()
    if not first:
        if not last:
            return None
        start, end = max(size - int(last), 0), size
    else:
        start = int(first)
        end = min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= end:
        raise Unsatisfiable
    return ByteRange(start, end)


def is_unchanged(headers: Mapping[bytes, bytes], etag: bytes) -> bool:
    """Return whether the client has this version (``If-None-Match``)."""
    known = headers.get(b"if-none-match")
    return known is not None and _names(known, etag, weak=True)


def is_other(headers: Mapping[bytes, bytes], etag: bytes) -> bool:
    """Return whether the client wants another version only (``If-Match``)."""
    wanted = headers.get(b"if-match")
    return wanted is not None and not _names(wanted, etag, weak=False)


def _names(tags: bytes, etag: bytes, *, weak: bool) -> bool:
    if tags.strip() == b"*":
        return True
    found = _ETAG.findall(tags)
    return etag in ([tag.removeprefix(b"W/") for tag in found] if weak else found)


# -- files ------------------------------------------------------------------------------------


MAX_ANNOUNCEMENT = 16 * 1024
"""The maximum size of the request that begins an upload."""

MIN_PIECE = 64 * 1024
"""The minimum number of bytes that are kept of an upload whose connection broke."""

UPLOAD_SEGMENT = "upload"

_SEGMENT = f"/{FILES}"
_INLINE = re.compile(
    r"(?:image/(?:png|jpeg|gif|webp|avif|bmp)|text/plain|application/pdf|audio/[\w.+-]+"
    r"|video/[\w.+-]+)(?:;.*)?",
    re.IGNORECASE,
)
_COMPLETE = (b"upload-complete", b"?1")
_INCOMPLETE = (b"upload-complete", b"?0")
_UNSAFE = re.compile(r"[^A-Za-z0-9 !#$&+.^_`{}~()@,=\[\]-]")

_STATUS: tuple[tuple[type[FileError], int], ...] = (
    (NoSuchFile, 404),
    (OffsetMismatch, 409),
    (TooManyBytes, 413),
    (DigestMismatch, 422),
    (TooManyUploads, 429),
    (FilesUnavailable, 503),
)


class Announcement(msgspec.Struct, frozen=True, rename="camel"):
    """The request that begins an upload."""

    filename: str = ""
    media_type: str = ""
    size: int | None = None
    sha256: str = ""


class BeginUploadResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to it. ``url`` is for a part, ``upload_url`` accepts the bytes."""

    id: str
    url: str
    upload_url: str
    expires_at: str


class FilesBinding(AgentHandler):
    """Answers the paths of files below an agent's address; ``otherwise`` answers all others.

    ``prefix`` are the segments of that address. ``transfers`` bounds concurrent uploads and
    downloads.
    """

    def __init__(
        self,
        otherwise: ASGIApp,
        served: ServedEndpoint,
        prefix: Iterable[str],
        transfers: ConcurrencyLimiter,
    ) -> None:
        self._otherwise = otherwise
        self._served = served
        self._prefix = tuple(prefix)
        self._transfers = transfers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        path = scope["path"]
        if _SEGMENT in path:
            below_mount = route_path(scope)
            try:
                mount = path[: len(path) - len(below_mount)]
                segments = segments_of(scope, mount, self._prefix)
            except A2AError:
                segments = ()
            # With or without a leading tenant.
            for at in (0, 1):
                rest = segments[at + 1 :]
                if segments[at : at + 1] == (FILES,) and _is_path(rest):
                    tenant = segments[0] if at else ""
                    exchange = FileExchange(self._served, self._transfers, scope, tenant, rest)
                    await exchange.run(receive, send)
                    return
        await self._otherwise(scope, receive, send)

    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests with the head of a scope, unless they are for files."""
        return None if _SEGMENT in scope["path"] else requests_of(self._otherwise, scope)


def _is_path(rest: tuple[str, ...]) -> bool:
    return len(rest) < 2 or (len(rest) == 2 and rest[1] == UPLOAD_SEGMENT)


class FileExchange:
    """One request for files, from its headers to the last byte of its response."""

    def __init__(
        self,
        served: ServedEndpoint,
        transfers: ConcurrencyLimiter,
        scope: Scope,
        tenant: str,
        rest: tuple[str, ...],
    ) -> None:
        self._served = served
        self._transfers = transfers
        self._scope = scope
        self._tenant = tenant
        self._rest = rest
        self._headers: Mapping[bytes, bytes] = dict(scope["headers"])
        client = scope.get("client")
        self._address = client[0] if client else ""
        self._started = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await self._answer(receive, send)
        except ClientGone:
            return
        except FileError as error:
            await self._refuse(send, _status(error), str(error), _headers(error))
        except (Exception, asyncio.CancelledError) as error:
            failure = self._served.lifecycle.failure(error, "a file")
            message = failure.message
            if isinstance(failure, BodyTooLarge):
                message = f"an upload is announced in up to {MAX_ANNOUNCEMENT} bytes of JSON"
            headers = self._served.error_headers(failure, self._scope)
            await self._refuse(send, failure.http_status, message, headers)

    async def _refuse(self, send: Send, status: int, message: str, headers: Headers = ()) -> None:
        if not self._started:
            headers = (NO_STORE, *headers)
            await reply_with_message(self._scope, send, status, message, headers)

    async def _answer(self, receive: Receive, send: Send) -> None:
        scope, rest, verb = self._scope, self._rest, self._scope["method"]
        if not rest:
            allowed, words = "POST", "an upload begins with POST"
        elif len(rest) == 1:
            allowed, words = "GET, HEAD", "a file is read with GET"
        else:
            allowed, words = "PATCH, HEAD", "bytes are uploaded with PATCH"
        if verb not in allowed.split(", "):
            await refuse_method(scope, send, allowed, words)
            return
        served = self._served
        if not served.lifecycle.started:
            await served.dispatcher.start()
        service = served.dispatcher.endpoint(self._tenant).files
        if service is None:
            raise NoSuchFile
        await service.store.open()
        if not rest:
            await self._begin(service, receive, send)
        elif len(rest) == 1:
            await self._download(service, rest[0], receive, send)
        else:
            await self._upload(service, rest[0], receive, send)

    async def _caller(self, operation: str, id: str = "") -> Caller:
        """Return the caller if it may perform ``operation``. Raises ``A2AError``."""
        caller = ANONYMOUS
        identify = self._served.identify
        if identify is not None:
            identified = identify(self._scope)
            caller = identified if isinstance(identified, Caller) else await identified
            check_caller(caller)
        endpoint = self._served.dispatcher.endpoint(self._tenant)
        authorization = endpoint.authorization
        if authorization is None and caller.granted:
            caller = ANONYMOUS  # proved only by schemes of other agents at this address
        elif authorization is not None:
            caller = authorization.own_caller(caller)
            authorization.check(operation, caller)
            access = Access(
                caller=caller,
                agent=endpoint.key,
                tenant=self._tenant,
                operation=operation,
                resource=id,
            )
            await authorization.permit(access)
        return caller

    def _signature(self) -> str:
        query: str = self._scope["query_string"].decode("latin-1")
        return dict(parse_qsl(query)).get(SIGNATURE, "")

    # -- begin ---------------------------------------------------------------------------------

    async def _begin(self, service: FileService, receive: Receive, send: Send) -> None:
        """Begin an upload of the caller (POST)."""
        self._served.lifecycle.check_takes_work()
        caller = await self._caller(UPLOAD_FILE)
        declared = self._headers.get(b"content-type", b"")
        if base(declared) != b"application/json":
            raise NotJson("an upload is announced with the Content-Type application/json")
        body = await read_body(
            receive,
            self._scope,
            self._headers.get(b"content-length"),
            MAX_ANNOUNCEMENT,
            self._served.request_bytes,
        )
        at = self._base_url()
        try:
            announced = _ANNOUNCEMENT.decode(without_bom(body) or b"{}")
            record = await service.store.begin(
                service.scope(self._tenant, caller),
                filename=announced.filename,
                media_type=announced.media_type,
                size=announced.size,
                sha256=announced.sha256,
            )
        except ValueError as error:  # an invalid announcement, or another JSON
            raise InvalidParamsError(str(error)) from None
        store = service.store
        signature = store.sign(UPLOAD, record.id, record.expires_at)
        upload_url = f"{at}/{FILES}/{record.id}/{UPLOAD_SEGMENT}?{SIGNATURE}={signature}"
        answer = BeginUploadResponse(
            id=record.id,
            url=address(store, at, record.id),
            upload_url=upload_url,
            expires_at=_time(record.expires_at),
        )
        headers = [NO_STORE, (b"location", upload_url.encode())]
        await reply(send, 201, msgspec.json.encode(answer), headers)

    def _base_url(self) -> str:
        """Return the base URL of the files of this tenant, as the caller sees it."""
        interface = self._served.interfaces(self._scope, self._tenant)
        for each in interface:
            if each.protocol_binding == "HTTP+JSON":
                url = each.url.rstrip("/")
                return f"{url}/{quote(each.tenant, safe='')}" if each.tenant else url
        raise NoSuchFile

    # -- upload --------------------------------------------------------------------------------

    async def _upload(self, service: FileService, id: str, receive: Receive, send: Send) -> None:
        """Append to an upload (PATCH), or return its progress (HEAD)."""
        store = service.store
        if not store.allows(UPLOAD, id, self._signature()):
            raise NoSuchFile
        record = _of_agent(service, await store.begun(id))
        status = await store.status(record)
        if self._scope["method"] == "HEAD":
            await _reply_with_offset(send, 200, status.offset, complete=status.complete)
            return
        self._served.lifecycle.check_takes_work()
        offset = _number(self._headers.get(b"upload-offset", b""))
        if offset != status.offset:
            raise OffsetMismatch(status.offset, complete=status.complete)
        if status.complete:
            # The answer to the last request was lost; the upload is already complete.
            await _reply_with_offset(send, 204, status.offset, complete=True)
            return
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and offset + int(length[:19]) > record.limit:
            raise TooManyBytes(record.limit, "and the body has more after Upload-Offset")
        with self._transfers.slot_of((record.scope.tenant, record.scope.owner)):
            writer = await store.resume(record)
            if writer.offset != offset:
                raise OffsetMismatch(writer.offset)
            is_last = self._headers.get(b"upload-complete", b"").strip() == b"?1"
            try:
                await self._receive(writer, receive)
                complete = is_last or writer.offset == record.size
                if complete:
                    await writer.finish()
            finally:
                writer.leave()
        await _reply_with_offset(send, 204, writer.offset, complete=complete)

    async def _receive(self, writer: UploadWriter, receive: Receive) -> None:
        """Append the body of the request, and make it durable.

        When the server has no room for more bytes, the bytes of this upload are written early.
        """
        budget = self._served.request_bytes
        reserved = 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    if writer.buffered >= MIN_PIECE:
                        await writer.flush()
                    raise ClientGone
                piece: bytes = message.get("body", b"")
                if piece:
                    try:
                        budget.reserve(self._address, len(piece))
                    except OverloadedError:
                        await writer.flush()
                        budget.release(self._address, reserved)
                        reserved = 0
                        budget.reserve(self._address, len(piece))
                    reserved += len(piece)
                    await writer.write(piece)
                    budget.release(self._address, reserved - writer.buffered)
                    reserved = writer.buffered
                if not message.get("more_body", False):
                    await writer.flush()
                    return
                if self._served.lifecycle.draining:
                    await writer.flush()
                    raise _Interrupted(writer.offset)
        finally:
            budget.release(self._address, reserved)

    # -- download ------------------------------------------------------------------------------

    async def _download(self, service: FileService, id: str, receive: Receive, send: Send) -> None:
        """Send a file, or a range of it: to its owner, or at a signed address to any caller."""
        store = service.store
        signature = self._signature()
        if signature and store.allows(DOWNLOAD, id, signature):
            record = _of_agent(service, await store.find(id, None))
        else:
            caller = await self._caller(DOWNLOAD_FILE, id)
            record = await store.find(id, service.scope(self._tenant, caller))
        etag = f'"{record.sha256}"'.encode()
        headers = _file_headers(record, etag)
        if is_other(self._headers, etag):
            await self._refuse(send, 412, "the file is another version than If-Match names")
            return
        if is_unchanged(self._headers, etag):
            await reply_without_body(send, 304, headers)
            return
        start, end, status = 0, record.size, 200
        if self._scope["method"] == "GET":
            try:
                wanted = range_of(self._headers, record.size, etag)
            except Unsatisfiable:
                size = (b"content-range", b"bytes */%d" % record.size)
                words = f"the file has {record.size} bytes, and none in this range"
                await self._refuse(send, 416, words, [size])
                return
            if wanted is not None:
                (start, end), status = wanted, 206
                headers.append(
                    (b"content-range", b"bytes %d-%d/%d" % (start, end - 1, record.size))
                )
        headers.append((b"content-length", b"%d" % (end - start)))
        if self._scope["method"] == "HEAD":
            await reply_without_body(send, 200, headers)
            return
        with self._transfers.slot_of((record.scope.tenant, record.scope.owner)):
            async with aclosing(store.read(record, start, end)) as pieces:
                await self._send(pieces, status, headers, receive, send)

    async def _send(
        self,
        pieces: AsyncIterator[bytes],
        status: int,
        headers: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send chunks until they end or the client leaves.

        The first chunk is read before the headers are sent: until then an error can be answered.
        After that, the connection is cut.
        """
        first = await anext(pieces, b"")
        watch = asyncio.create_task(_disconnected(receive))
        try:
            self._started = True
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                if watch.done():
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except OSError:  # raised by ASGI servers for a lost connection
            return
        finally:
            watch.cancel()
            await asyncio.wait((watch,))


class _Interrupted(FilesUnavailable):
    """The server shuts down while bytes arrive."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__("the server is shutting down; continue the upload in a moment")


_ANNOUNCEMENT = msgspec.json.Decoder(Announcement)


def _status(error: FileError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def _headers(error: FileError) -> list[tuple[bytes, bytes]]:
    """Return headers with hints for a retry."""
    headers = []
    if isinstance(error, OffsetMismatch | _Interrupted):
        headers.append((b"upload-offset", b"%d" % error.offset))
    if isinstance(error, OffsetMismatch):
        headers.append(_COMPLETE if error.complete else _INCOMPLETE)
    if isinstance(error, FilesUnavailable | TooManyUploads):
        headers.append((b"retry-after", b"1"))
    return headers


async def _reply_with_offset(send: Send, status: int, offset: int, *, complete: bool) -> None:
    headers = [NO_STORE, (b"upload-offset", b"%d" % offset), _COMPLETE if complete else _INCOMPLETE]
    await reply_without_body(send, status, headers)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] == "http.request":
        pass


def _of_agent(service: FileService, record: FileRecord) -> FileRecord:
    """Return a file at a signed address. Raises ``NoSuchFile`` if it is another agent's."""
    if record.scope.agent != service.agent and record.scope.agent not in service.guests:
        raise NoSuchFile
    return record


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise InvalidParamsError("Upload-Offset: the number of bytes that the server has; ask HEAD")
    return int(value)


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def _file_headers(record: FileRecord, etag: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a file, for the whole file or a part of it.

    Browsers show only content that cannot run scripts, and never as a page of this server.
    """
    media_type = record.media_type or OCTETS
    kind = "inline" if _INLINE.fullmatch(media_type) else "attachment"
    return [
        (b"content-type", media_type.encode("ascii")),
        (b"content-disposition", _disposition(kind, record.filename)),
        (b"etag", etag),
        (b"repr-digest", b"sha-256=:%b:" % b64encode(bytes.fromhex(record.sha256))),
        (b"accept-ranges", b"bytes"),
        (b"cache-control", b"private, no-cache"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; sandbox"),
        (b"referrer-policy", b"no-referrer"),
    ]


def _disposition(kind: str, filename: str) -> bytes:
    """Return the header with a filename, for old readers in ASCII (RFC 6266, RFC 8187)."""
    if not filename:
        return kind.encode()
    plain = _UNSAFE.sub("_", filename)
    value = f'{kind}; filename="{plain}"'
    if plain != filename:
        value += f"; filename*=UTF-8''{quote(filename, safe='')}"
    return value.encode("ascii")
