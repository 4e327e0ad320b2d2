"""Objects in a store with the interface of S3, through ``obstore``."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from parley.files.objects import PAGE, READ_BYTES, FilesUnavailable, NoSuchFile, ObjectEntry

_ATTEMPTS = 5
_RETRY: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}

log = logging.getLogger("parley.files")


class S3Objects:
    """Objects in a bucket, below the prefix of an address such as ``s3://bucket/prefix``.

    Credentials, region and endpoint come from the environment (``AWS_ACCESS_KEY_ID``,
    ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ...) or from the machine's role. Creating an object needs
    a store that supports ``If-None-Match`` on PUT, as S3 and most compatible stores do; opening
    checks this.
    """

    is_shared = True

    def __init__(self, url: str) -> None:
        self.url = url
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
        self._objects = S3Store.from_url(
            url, client_options={"allow_http": endpoint.startswith("http://")}, retry_config=_RETRY
        )

    async def open(self) -> None:
        """Check that objects can be written, and that creating one twice is rejected."""
        key = "check/created"
        await self.put(key, b"")
        if await self.create(key, b""):
            raise FilesUnavailable(
                f"{self.url} overwrites objects in spite of If-None-Match: *; use a store that "
                "supports this header on PUT"
            )

    async def close(self) -> None:
        """Do nothing: connections are closed with the process."""

    async def put(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, replacing one with the same key."""
        with self._explained():
            await obstore.put_async(self._objects, key, data, use_multipart=False)

    async def create(self, key: str, data: bytes | bytearray) -> bool:
        """Write an object unless its key exists; return whether it was written."""
        with self._explained():
            try:
                await obstore.put_async(
                    self._objects, key, data, mode="create", use_multipart=False
                )
            except AlreadyExistsError:
                return False
        return True

    async def get(self, key: str) -> bytes | None:
        """Return a small object, ``None`` if there is none."""
        with self._explained():
            try:
                result = await obstore.get_async(self._objects, key)
            except FileNotFoundError:
                return None
            return bytes(await result.bytes_async())

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes of an object, in chunks.

        When the connection breaks, as it does with a slow reader, the rest is requested again.
        """
        failures = 0
        while start < end:
            before = start
            try:
                with self._explained():
                    try:
                        result = await obstore.get_async(
                            self._objects, key, options={"range": (start, end)}
                        )
                    except FileNotFoundError:
                        raise NoSuchFile from None
                    pieces = result.stream(min_chunk_size=READ_BYTES)
                    async for data in pieces:
                        view = memoryview(data)[: end - start]
                        for at in range(0, len(view), READ_BYTES):
                            piece = bytes(view[at : at + READ_BYTES])
                            start += len(piece)
                            yield piece
            except FilesUnavailable:
                failures = 1 if start > before else failures + 1
                if failures == _ATTEMPTS:
                    raise
                continue
            if start == before:
                raise NoSuchFile

    async def list(self, folder: str, limit: int = PAGE, after: str = "") -> Sequence[ObjectEntry]:
        """Return the first objects below a folder, in the order of their keys."""
        found: list[ObjectEntry] = []
        with self._explained():
            pages = obstore.list(
                self._objects, folder, offset=after or None, chunk_size=min(limit, PAGE)
            )
            async for page in pages:
                found += [ObjectEntry(each["path"], each["size"]) for each in page]
                if len(found) >= limit:
                    break
        return found[:limit]

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Missing ones are ignored."""
        listed = list(keys)
        with self._explained():
            for at in range(0, len(listed), PAGE):
                await obstore.delete_async(self._objects, listed[at : at + PAGE])

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the store into an error that callers may see; the log has the rest."""
        try:
            yield
        except (BaseError, OSError) as error:
            log.error("files in %s: %s", self.url, str(error).partition("\n")[0])
            raise FilesUnavailable("files cannot be kept or read now: the store fails") from error
