"""Download of one file over HTTP, continued after a broken connection (RFC 9110 §14)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from parley.client.bindings.http import (
    MAX_REDIRECTS,
    REDIRECTS,
    HttpTransport,
    OpenResponse,
    redacted,
)
from parley.client.bindings.request_auth import NOTHING, RequestAuth, override, refusal_in
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    Disconnected,
    FileLimitExceeded,
    FileMismatch,
    Timeout,
    UnexpectedStatus,
)
from parley.client.files.stream import FileFacts, Progress
from parley.client.origin import redirect_target
from parley.client.retry import LONGEST_WAIT, Retry, is_worth_repeating
from parley.model.backoff import seconds_of

logger = logging.getLogger(__name__)

_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)")
_FILENAME = re.compile(r'filename="((?:[^"\\]|\\.)*)"|filename=([^\s;"]+)', re.IGNORECASE)
_EXTENDED_FILENAME = re.compile(r"filename\*=utf-8''([^\s;]+)", re.IGNORECASE)
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")


class FetchRoute(NamedTuple):
    """The transport for an address, and the headers that its server may get.

    ``auth`` has further credentials.
    """

    http: HttpTransport
    url: str
    headers: Mapping[str, str]
    is_own: bool
    auth: RequestAuth | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on a download.

    ``max_bytes`` is the maximum size. ``idle`` bounds the seconds without a byte. After ``grace``
    seconds of waiting, a server must have sent ``min_rate`` bytes per second.
    """

    max_bytes: int | None = None
    idle: float | None = 30.0
    min_rate: int = 0
    grace: float = 60.0


class Download:
    """A download: ``chunks`` yields the bytes, and reads facts about the file from each response.

    ``route`` returns the transport and the headers for every address, including redirects. After a
    redirect to another server no credentials are sent. ``sha256`` is the expected digest of the
    whole file, if known.
    """

    def __init__(
        self,
        url: str,
        facts: FileFacts,
        *,
        route: Callable[[str], FetchRoute],
        retry: Retry,
        limits: Limits,
        sha256: str = "",
        progress: Progress | None = None,
    ) -> None:
        self._url = url
        self._facts = facts
        self._route = route
        self._retry = retry
        self._limits = limits
        self._sha256 = sha256.lower()
        self._progress = progress
        self._hash = hashlib.sha256()
        self._position = 0
        self._validator = ""
        self._waited = 0.0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the file, once and in order."""
        failures, reached = 0, 0
        while True:
            try:
                async with self._open() as answer:
                    async for chunk in self._body_of(answer):
                        yield chunk
                break
            except ClientError as error:
                if self._position > reached:
                    failures, reached = 0, self._position
                wished: float | None = getattr(error, "retry_after", None)
                if (
                    failures >= (self._retry.streams if reached else self._retry.calls)
                    or not is_worth_repeating(error, safe=True)
                    or (self._position and not self._validator)
                    or (wished or 0.0) > LONGEST_WAIT
                ):
                    raise
                pause = self._retry.pause(failures) if wished is None else wished
                failures += 1
                logger.info("%s; resuming at byte %d in %.2f s", error, self._position, pause)
            await asyncio.sleep(pause)
        if self._sha256 and self._hash.hexdigest() != self._sha256:
            raise FileMismatch(
                f"the bytes of {self._where} do not have the announced SHA-256; do not use them"
            )

    @property
    def _where(self) -> str:
        return redacted(self._url)

    async def _body_of(self, answer: OpenResponse) -> AsyncIterator[bytes]:
        """Yield the new bytes of a response."""
        skipped = self._begin(answer)
        clock = asyncio.get_running_loop().time
        chunks = answer.chunks()
        while True:
            began = clock()
            chunk = await anext(chunks, None)
            self._waited += clock() - began
            if chunk is None:
                break
            if skipped:
                known = min(skipped, len(chunk))
                skipped, chunk = skipped - known, chunk[known:]
                if not chunk:
                    continue
            self._position += len(chunk)
            self._check_size(self._position)
            self._check_speed()
            self._hash.update(chunk)
            if self._progress is not None:
                self._progress(self._position, self._facts.size)
            yield chunk
        size = self._facts.size
        if skipped or (size is not None and self._position < size):
            raise Disconnected(f"the answer of {self._where} broke off at byte {self._position:,}")
        if size is not None and self._position > size:
            raise FileMismatch(f"{self._where} sent more than the {size:,} bytes it announced")

    def _begin(self, answer: OpenResponse) -> int:
        """Record a response's facts about the file. Return how many of its bytes are already
        known."""
        headers = answer.headers
        whole = headers.get("content-encoding", "identity") == "identity"
        validator = _validator_of(headers) if whole else ""
        length = headers.get("content-length", "")
        if answer.status == 200:
            size = int(length) if whole and re.fullmatch(r"\d{1,18}", length) else None
            begin = 0
        else:
            match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
            if match is None or match[1] is None or int(match[1]) != self._position:
                raise FileMismatch(
                    f"{self._where} answered with another part of the file than requested"
                )
            size = None if match[2] == "*" else int(match[2])
            begin = self._position
        if self._position:
            if validator != self._validator or size != self._facts.size:
                raise FileMismatch(
                    f"the file at {self._where} changed after {self._position:,} bytes; "
                    "download it again"
                )
        else:
            self._validator = validator
            self._learn(headers, size)
        return self._position - begin

    def _learn(self, headers: Mapping[str, str], size: int | None) -> None:
        facts = self._facts
        facts.size = size
        facts.media_type = facts.media_type or headers.get("content-type", "")
        facts.filename = facts.filename or _name_in(headers.get("content-disposition", ""))
        self._sha256 = self._sha256 or _digest_in(headers.get("repr-digest", ""))
        self._check_size(size or 0)

    def _check_size(self, size: int) -> None:
        limit = self._limits.max_bytes
        if limit is not None and size > limit:
            raise FileLimitExceeded(
                f"the file at {self._where} has more than {limit:,} bytes, the limit here"
            )

    def _check_speed(self) -> None:
        rate = self._limits.min_rate
        if self._waited > self._limits.grace and self._position < rate * self._waited:
            raise Timeout(f"{self._where} sends less than {rate:,} bytes a second")

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[OpenResponse]:
        """Request the rest of the file, and yield the response with it."""
        ours = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if self._position:
            ours |= {"Range": f"bytes={self._position}-", "If-Range": self._validator}
        url, may_have_credentials, may_ask = self._url, True, True
        left = MAX_REDIRECTS + 1
        while left:
            http, target, headers, is_own, auth = self._route(url)
            given = NOTHING
            if may_have_credentials and is_own:
                given = await auth.parameters(None) if auth is not None else NOTHING
                ours_here = {**override(headers, given.headers), **ours}
                target = given.add_to(target)
            else:
                target, ours_here, may_have_credentials = url, ours, False
            async with http.open("GET", target, ours_here, None, idle=self._limits.idle) as answer:
                if answer.status in (401, 403) and may_ask and may_have_credentials and auth:
                    may_ask = False
                    if await auth.answer(refusal_in(answer.status, answer.headers), None, given):
                        continue
                left -= 1
                location = answer.headers.get("location")
                if answer.status not in REDIRECTS or location is None:
                    self._check_status(answer)
                    yield answer
                    return
                url = redirect_target(url, location, answer.status)
        raise UnexpectedStatus(
            f"{self._where} redirects more than {MAX_REDIRECTS} times", status=302
        )

    def _check_status(self, answer: OpenResponse) -> None:
        status = answer.status
        if status == 200 or (status == 206 and self._position):
            return
        where = redacted(answer.url)
        match status:
            case 401 | 403:
                raise AuthenticationRequired(
                    f"{where} rejects the download: its address has expired, or it wants other "
                    "credentials; ask the agent for a new address",
                    status=status,
                    challenge=answer.headers.get("www-authenticate", ""),
                )
            case 404 | 410:
                words = "has no such file, or has removed it"
            case 416:
                words = f"has no byte {self._position:,} of the file: it changed"
            case _:
                words = f"answered {status}"
        raise UnexpectedStatus(
            f"{where} {words}",
            status=status,
            retry_after=seconds_of(answer.headers.get("retry-after")),
        )


def _validator_of(headers: Mapping[str, str]) -> str:
    """Return the validator that shows changes of the file; weak entity tags do not count."""
    etag = headers.get("etag", "")
    return etag if etag.startswith('"') else ""


def _name_in(disposition: str) -> str:
    extended = _EXTENDED_FILENAME.search(disposition)
    if extended:
        return unquote(extended[1])
    found = _FILENAME.search(disposition)
    if not found:
        return ""
    return re.sub(r"\\(.)", r"\1", found[1]) if found[1] is not None else found[2]


def _digest_in(header: str) -> str:
    """Return the SHA-256 of the whole file in a response (RFC 9530), as hex."""
    found = _DIGEST.search(header)
    if not found:
        return ""
    try:
        digest = base64.b64decode(found[1], validate=True)
    except (binascii.Error, ValueError):
        return ""
    return digest.hex() if len(digest) == 32 else ""
