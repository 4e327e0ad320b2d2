"""A server that is found in a registry: it publishes its catalog there, and sends heartbeats.

The registry may be away, slow, or wrong: the server goes on as if it had none, and tries again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from parley.model.backoff import Backoff, uniform
from parley.model.catalog.entries import CATALOG, CATALOG_PATH

if TYPE_CHECKING:
    from starlette.types import Message

    from parley.client.registry.publishing import RegistryPublisher
    from parley.server.app import App

log = logging.getLogger("parley.host")

FIRST_SECONDS = 1.0
"""How long after the start the catalog is published: by then the server answers."""

PUBLISH_SECONDS = 3600.0
BEAT_SECONDS = 30.0
SHORTEST, LONGEST = 1.0, 3600.0
MAX_NAMED = 500
TIMEOUT = 90.0
STOP_SECONDS = 5.0


class RegistryRegistration:
    """Publishes the catalog of a server in a registry, and beats for its agents.

    ``url`` is the public address of the server. Credentials are those of the environment for the
    registry's origin (``PARLEY_AUTH_ORIGIN``), or a login.
    """

    def __init__(self, registry: str, url: str, *, first_seconds: float = FIRST_SECONDS) -> None:
        from parley.client.registry.places import PlaceKind, place_of

        kind = place_of(registry).kind
        if kind in (PlaceKind.FILE, PlaceKind.JSON, PlaceKind.CATALOG):
            raise ValueError(
                f"registry= is the address of a registry that is published in, such as "
                f"https://registry.example.com, not {registry!r:.200}"
            )
        self.registry = registry
        self.url = url
        self._first = first_seconds
        self._task: asyncio.Task[None] | None = None
        self.problem = ""
        """Why it is not published, or what of it is not listed; empty if all is well."""
        self.published: tuple[str, ...] = ()
        self._waiting: tuple[str, ...] = ()
        self._is_away = False

    def start(self, app: App) -> None:
        """Begin to publish and to beat. Idempotent; never fails."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(app), name="parley-registration")

    async def stop(self) -> None:
        """Stop it. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.gather(task, return_exceptions=True)

    async def _run(self, app: App) -> None:
        from parley.client.errors import ClientError
        from parley.client.registry.publishing import RegistryPublisher
        from parley.client.registry.remote_registry import RemoteRegistry

        backoff = Backoff(2.0, 300.0, jitter=(0.8, 1.2))
        failures = 0
        await asyncio.sleep(self._first)
        while True:
            try:
                async with RemoteRegistry(self.registry, timeout=TIMEOUT, retries=0) as remote:
                    publisher = RegistryPublisher(remote)
                    while True:
                        is_whole = await self._publish(app, publisher)
                        failures = 0 if is_whole else failures + 1
                        wait = PUBLISH_SECONDS if is_whole else backoff.delay(failures)
                        await self._beat(publisher, wait)
            except (ClientError, ValueError) as error:
                failures += 1
                self._failed(_line(str(error)) or type(error).__name__)
            except Exception:
                failures += 1
                log.exception("publishing in the registry %s failed", self.registry)
            await asyncio.sleep(backoff.delay(failures))

    async def _publish(self, app: App, publisher: RegistryPublisher) -> bool:
        """Publish the catalog; return whether all of it is listed."""
        catalog = msgspec.json.decode(await catalog_of(app, self.url))
        report = await publisher.publish(catalog)
        if self._is_away:
            log.info("the registry %s answers again", self.registry)
            self._is_away = False
        entries, refused = report.get("entries") or [], report.get("refused") or []
        listed = [each for each in entries if each.get("standing") in ("listed", "shadowed")]
        own = {each["identifier"] for each in catalog["entries"] if each.get("type") != CATALOG}
        names = tuple(str(each["identifier"]) for each in entries if each["identifier"] in own)
        if names != self.published:
            self.published = names
            log.info("published in %s: %s", self.registry, ", ".join(names) or "nothing")
        waiting = tuple(
            _line(f"{each.get('identifier')} is {each.get('standing')}: {each.get('reason')}")
            for each in (*refused, *(each for each in entries if each not in listed))
        )
        for words in [each for each in waiting if each not in self._waiting][:10]:
            log.warning("the registry %s: %s", self.registry, words)
        self._waiting = waiting
        self.problem = waiting[0] if waiting else ""
        return not waiting

    async def _beat(self, publisher: RegistryPublisher, seconds: float) -> None:
        """Send heartbeats for a time. Raises ``ClientError``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        wait = BEAT_SECONDS
        is_known = True
        while self.published and is_known and loop.time() < until:
            for begin in range(0, len(self.published), MAX_NAMED):
                answer = await publisher.beat(self.published[begin : begin + MAX_NAMED])
                wait = _seconds(answer.get("interval"), wait)
                is_known = is_known and not answer.get("unknown")
            await asyncio.sleep(min(wait * uniform(0.9, 1.0), max(0.0, until - loop.time())))
        if is_known:  # else it is time to publish again
            await asyncio.sleep(max(0.0, until - loop.time()))

    def _failed(self, problem: str) -> None:
        """Log that the registry cannot be published in: once for each reason."""
        if not self._is_away or problem != self.problem:
            log.warning(
                "the registry %s cannot be published in, and is tried again: %s",
                self.registry,
                problem,
            )
        self.problem, self._is_away = problem, True


def read_registration(
    registry: str | None, url: str | None, *, publishes: bool
) -> RegistryRegistration | None:
    """Return the registration of a server, ``None`` without a registry. Raises ``ValueError``."""
    if not registry:
        return None
    if not publishes:
        raise ValueError(
            "registry= publishes the catalog of the server, which needs a publisher= (a domain "
            "such as example.com, which this server's credentials have proved to the registry)"
        )
    if url is None:
        raise ValueError(
            "registry= needs the public address of the server (url=): the agents are called there"
        )
    return RegistryRegistration(registry, url)


async def catalog_of(app: App, url: str) -> bytes:
    """Return the catalog of a server as it is at an address, from this process."""
    parts = urlsplit(url)
    status = 0
    pieces: list[bytes] = []
    path = parts.path.rstrip("/")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": parts.scheme,
        "path": path + CATALOG_PATH,
        "raw_path": (path + CATALOG_PATH).encode(),
        "root_path": path,
        "query_string": b"",
        "headers": [(b"host", parts.netloc.encode())],
        "client": None,
        "server": (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))

    await app.handler_at(CATALOG_PATH)(scope, receive, send)
    if status != 200:
        raise ValueError(f"the catalog of this server cannot be made for {url}: {status}")
    return b"".join(pieces)


def _line(text: str) -> str:
    """Return a text on one line, bounded: the registry chooses some of its words."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(line.split())[:500]


def _seconds(value: Any, default: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return min(max(float(value), SHORTEST), LONGEST)
    return default
