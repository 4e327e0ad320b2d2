"""Publishing in a registry: of a server's catalog, and of agents that register with the server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from parley.client.errors import ClientError
from parley.model.backoff import Backoff, uniform
from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.model.service import Caller
from parley.registry.catalog.entries import CATALOG, AirUrn, one_line
from parley.registry.client.places import ReferenceKind, parse_reference
from parley.registry.client.remote_registry import RemoteRegistry

_LISTED = "specVersion", "entries", "host"


class RegistryPublisher:
    """The operations of publishers and operators in a registry. Every method raises
    ``RegistryRefused``, whose message says how to correct the request, and the errors of
    ``RemoteRegistry``.
    """

    def __init__(self, registry: RemoteRegistry) -> None:
        self.registry = registry

    async def challenge(self, domain: str, *, origin: str = "") -> dict[str, Any]:
        """Return the challenge for a domain: ``record`` for DNS, or ``document``."""
        asked = {"domain": domain, **({"origin": origin} if origin else {})}
        return await self.registry.send("POST", "publish/challenges", asked)

    async def prove(self, domain: str, method: str = "", *, origin: str = "") -> dict[str, Any]:
        """Let the registry look for the proof, by ``dns``, by ``well-known``, or by both."""
        asked = {"domain": domain, "method": method, **({"origin": origin} if origin else {})}
        return await self.registry.send("POST", "publish/domains", asked, safe=True)

    async def release(self, domain: str) -> None:
        """Release a domain."""
        await self.registry.send("DELETE", f"publish/domains/{quote(domain, safe='')}")

    async def publish(
        self,
        catalog: Mapping[str, Any],
        *,
        audience: Sequence[str | Mapping[str, str]] | None = None,
        probe: str | None = None,
        replace: bool = False,
    ) -> dict[str, Any]:
        """Publish the entries of a catalog; publishing them again changes nothing."""
        body = _publish(catalog, audience, probe, replace=replace)
        return await self.registry.send("POST", "publish", body, safe=True)

    async def published(self) -> dict[str, Any]:
        """Return the entries and domains of the caller, with their states."""
        return await self.registry.send("GET", "publish", safe=True)

    async def withdraw(self, identifier: str) -> int:
        """Withdraw an entry; return how many were listed."""
        route = f"entries/{quote(identifier, safe='')}"
        answer = await self.registry.send("DELETE", route, safe=True)
        return int(answer.get("withdrawn", 0))

    async def beat(
        self, identifiers: Sequence[str], details: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Report that agents are alive; the response has the time until the next heartbeat
        (``interval``).
        """
        body = {"identifiers": list(identifiers), "details": dict(details or {})}
        return await self.registry.send("POST", "heartbeats", body, safe=True)

    async def bring_in(
        self,
        name: str,
        catalog: Mapping[str, Any],
        *,
        audience: Sequence[str | Mapping[str, str]] | None = None,
        replace: bool = False,
    ) -> dict[str, Any]:
        """Import a catalog as the operator of the registry, who vouches for it."""
        body = _publish(catalog, audience, None, replace=replace)
        route = f"operator/import/{quote(name, safe='')}"
        return await self.registry.send("POST", route, body, safe=True)

    async def add_source(self, url: str, *, vouches: bool = False) -> dict[str, Any]:
        """Add a site or a catalog that the registry reads regularly."""
        body = {"url": url, "vouches": vouches}
        return await self.registry.send("POST", "operator/sources", body)

    async def refresh(self, url: str) -> list[Any]:
        """Read a source again now, as the operator; return it, with the sources it leads to."""
        return _listed(await self.registry.send("POST", "operator/refresh", {"url": url}))

    async def sources(self) -> list[Any]:
        """Return the sources of the registry, with the results of their last visits, for the
        operator.
        """
        return _listed(await self.registry.send("GET", "operator/sources", safe=True))

    async def waiting(self, standings: Sequence[str] = (), limit: int = 100) -> list[Any]:
        """Return entries by standing, for the operator; by default the entries that are
        not listed.
        """
        asked = {"limit": str(limit), **({"standing": ",".join(standings)} if standings else {})}
        route = f"operator/entries?{urlencode(asked)}"
        return _listed(await self.registry.send("GET", route, safe=True), "entries")

    async def decide(
        self, identifier: str, standing: str, reason: str = "", *, source: str = ""
    ) -> dict[str, Any]:
        """List, hold or reject an entry, as the operator."""
        body = {"standing": standing, "reason": reason, "source": source}
        route = f"operator/entries/{quote(identifier, safe='')}"
        return await self.registry.send("POST", route, body, safe=True)


def _listed(answer: Mapping[str, Any], name: str = "sources") -> list[Any]:
    found = answer.get(name)
    return found if isinstance(found, list) else []


def _publish(
    catalog: Mapping[str, Any],
    audience: Sequence[str | Mapping[str, str]] | None,
    probe: str | None,
    *,
    replace: bool,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "catalog": {name: catalog[name] for name in _LISTED if name in catalog},
        "replace": replace,
    }
    if audience is not None:
        body["audience"] = list(audience)
    if probe is not None:
        body["probe"] = probe
    return body


log = logging.getLogger("parley.host")

FIRST_SECONDS = 1.0
"""The delay of the first publication after the start, so that the server answers by that time."""

PUBLISH_SECONDS = 3600.0
BEAT_SECONDS = 30.0
SHORTEST_BEAT, LONGEST_BEAT = 1.0, 3600.0
AGENTS_PER_BEAT = 500
TIMEOUT = 90.0
STOP_SECONDS = 5.0


class RegistryRegistration:
    """Publishes the catalog of a server in a registry, and sends heartbeats for its agents.

    ``url`` is the public address of the server. The credentials are the environment's credentials
    for the registry's origin (``PARLEY_AUTH_ORIGIN``), or a saved login.
    """

    def __init__(self, registry: str, url: str, *, first_seconds: float = FIRST_SECONDS) -> None:
        kind = parse_reference(registry).kind
        if kind in (ReferenceKind.FILE, ReferenceKind.JSON, ReferenceKind.CATALOG):
            raise ValueError(
                f"registry= must be the address of a registry, such as "
                f"https://registry.example.com, not {registry!r:.200}"
            )
        self.registry = registry
        self.url = url
        self._first = first_seconds
        self._task: asyncio.Task[None] | None = None
        self.problem = ""
        """The reason why it is not published, or why entries are not listed; empty without
        problems.
        """
        self.published: tuple[str, ...] = ()
        self._waiting: tuple[str, ...] = ()
        self._is_away = False

    def start(self, document: Callable[[], bytes]) -> None:
        """Start publishing the catalog that ``document`` returns, and sending heartbeats.
        Idempotent.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(document), name="parley-registration")

    async def stop(self) -> None:
        """Stop publishing. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.gather(task, return_exceptions=True)

    async def _run(self, document: Callable[[], bytes]) -> None:
        backoff = Backoff(2.0, 300.0, jitter=(0.8, 1.2))
        failures = 0
        await asyncio.sleep(self._first)
        while True:
            try:
                async with RemoteRegistry(self.registry, timeout=TIMEOUT, retries=0) as remote:
                    publisher = RegistryPublisher(remote)
                    while True:
                        is_whole = await self._publish(document, publisher)
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

    async def _publish(self, document: Callable[[], bytes], publisher: RegistryPublisher) -> bool:
        """Publish the catalog; return whether all entries are listed."""
        catalog = msgspec.json.decode(document())
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
        """Send heartbeats for some seconds. Raises ``ClientError``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        wait = BEAT_SECONDS
        is_known = True
        while self.published and is_known and loop.time() < until:
            for begin in range(0, len(self.published), AGENTS_PER_BEAT):
                answer = await publisher.beat(self.published[begin : begin + AGENTS_PER_BEAT])
                wait = _seconds(answer.get("interval"), wait)
                is_known = is_known and not answer.get("unknown")
            await asyncio.sleep(min(wait * uniform(0.9, 1.0), max(0.0, until - loop.time())))
        if is_known:  # else the catalog must be published again
            await asyncio.sleep(max(0.0, until - loop.time()))

    def _failed(self, problem: str) -> None:
        """Log that publishing in the registry failed: once for each reason."""
        if not self._is_away or problem != self.problem:
            log.warning(
                "publishing in the registry %s failed and will be retried: %s",
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
            "registry= publishes the catalog of the server, which needs publisher= (a domain "
            "such as example.com, which this server's credentials have proved to the registry)"
        )
    if url is None:
        raise ValueError(
            "registry= needs the public address of the server (url=): clients call the agents there"
        )
    return RegistryRegistration(registry, url)


def _line(text: str) -> str:
    """Return a text on one line, bounded: it may contain texts of the registry."""
    return one_line(" ".join(text.split()), 500)


def _seconds(value: Any, default: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return min(max(float(value), SHORTEST_BEAT), LONGEST_BEAT)
    return default


# -- agents that register over a connection of the server ---------------------------------------

T = TypeVar("T")

NAMESPACE = "connected"
REGISTRAR_TIMEOUT = 30.0
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_OWN_NAME = re.compile(r"(?!.*-[0-9a-f]{12}$)[a-z0-9._-]{1,100}")
"""An id that is a valid name: in lower case, and unlike a name with a hash."""


class AgentRegistrar(Protocol):
    """Publishes agents that register over a connection, in the name of their caller.

    ``address`` is the caller's address. Its methods raise ``A2AError``, ``ClientError`` if the
    registry rejects the request or is unavailable, and ``StoreUnavailable``.
    """

    def identifier_of(self, agent_id: str, given: str) -> str:
        """Return the identifier of an agent's entry; ``given`` is the requested identifier."""
        ...

    async def publish(
        self, entry: Mapping[str, Any], audience: Any, caller: Caller, address: str
    ) -> Mapping[str, Any]:
        """Publish an entry; return its identifier, standing and reason."""
        ...

    async def withdraw(self, identifier: str, caller: Caller, address: str) -> None:
        """Withdraw an entry."""
        ...

    async def beat(self, identifiers: Sequence[str], caller: Caller) -> Mapping[str, Any]:
        """Report that agents are alive; return the registry's response."""
        ...


class RestRegistrar:
    """Publishes in the registry of a server, with the environment's credentials for the registry.

    These credentials prove the server's domain, so the server chooses the names: an agent is listed
    below the server's own agents, under its authenticated id.
    """

    def __init__(self, registry: str, publisher: str) -> None:
        self._registry = registry
        self._publisher = publisher

    def identifier_of(self, agent_id: str, given: str) -> str:
        """Return the identifier of an agent (``AgentRegistrar``)."""
        name = _NOT_A_NAME.sub("-", agent_id)
        if not _OWN_NAME.fullmatch(
            agent_id
        ):  # two ids never get the same name, even if they differ by case
            name = f"{name[:80]}-{hashlib.sha256(agent_id.encode()).hexdigest()[:12]}"
        own = str(AirUrn(self._publisher, (NAMESPACE,), name))
        if given and given.casefold() != own.casefold():
            raise PermissionDeniedError(
                f"through this server the agent is {own}: leave out the identifier, or publish "
                "another name in the registry itself"
            )
        return own

    async def publish(
        self, entry: Mapping[str, Any], audience: Any, caller: Caller, address: str
    ) -> Mapping[str, Any]:
        """Publish an entry (``AgentRegistrar``)."""
        if audience is not None:
            raise InvalidParamsError(
                "only the publisher, which is this server, sets the audience of an entry"
            )
        catalog = {"specVersion": "1.0", "entries": [entry]}
        report = await self._call(lambda publisher: publisher.publish(catalog))
        return outcome_of(report)

    async def withdraw(self, identifier: str, caller: Caller, address: str) -> None:
        """Withdraw an entry (``AgentRegistrar``)."""
        self._check_own(caller, [identifier])
        await self._call(lambda publisher: publisher.withdraw(identifier))

    async def beat(self, identifiers: Sequence[str], caller: Caller) -> Mapping[str, Any]:
        """Report that agents are alive (``AgentRegistrar``)."""
        self._check_own(caller, identifiers)
        return await self._call(lambda publisher: publisher.beat(identifiers))

    def _check_own(self, caller: Caller, identifiers: Sequence[str]) -> None:
        """Raise ``PermissionDeniedError`` for an identifier of another agent."""
        own = {
            self.identifier_of(each, "").casefold() for each in (caller.id, caller.client) if each
        }
        if strange := [each for each in identifiers if each.casefold() not in own]:
            raise PermissionDeniedError(f"{strange[0][:200]!r} does not belong to this agent")

    async def _call(self, call: Callable[[RegistryPublisher], Awaitable[T]]) -> T:
        async with RemoteRegistry(self._registry, timeout=REGISTRAR_TIMEOUT, retries=0) as remote:
            return await call(RegistryPublisher(remote))


def outcome_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the outcome of the only entry of a report. Raises ``PermissionDeniedError``."""
    for each in report.get("refused") or ():
        raise PermissionDeniedError(
            f"the registry rejected the entry: {str(each.get('reason'))[:500]}"
        )
    entries: Sequence[Mapping[str, Any]] = report.get("entries") or ({},)
    return {
        name: str(entries[0][name])[:1000]
        for name in ("identifier", "standing", "reason")
        if entries[0].get(name)
    }
