"""Publishing in a registry, over the routes that Parley's registries have for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from parley.client.registry.remote_registry import RemoteRegistry

_LISTED = "specVersion", "entries", "host"


class RegistryPublisher:
    """What publishers and operators do in a registry. Every method raises ``RegistryRefused``,
    whose message says what would be right, and the errors of ``RemoteRegistry``.
    """

    def __init__(self, registry: RemoteRegistry) -> None:
        self._registry = registry

    async def challenge(self, domain: str, *, origin: str = "") -> dict[str, Any]:
        """Return what has to be shown to prove a domain: ``record`` in DNS, or ``document``."""
        asked = {"domain": domain, **({"origin": origin} if origin else {})}
        return await self._registry.send("POST", "publish/challenges", asked)

    async def prove(self, domain: str, method: str = "", *, origin: str = "") -> dict[str, Any]:
        """Have it looked for, by ``dns``, by ``well-known``, or by both."""
        asked = {"domain": domain, "method": method, **({"origin": origin} if origin else {})}
        return await self._registry.send("POST", "publish/domains", asked, safe=True)

    async def release(self, domain: str) -> None:
        """Give a domain up."""
        await self._registry.send("DELETE", f"publish/domains/{quote(domain, safe='')}")

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
        return await self._registry.send("POST", "publish", body, safe=True)

    async def published(self) -> dict[str, Any]:
        """Return the entries and domains of the caller, with their states."""
        return await self._registry.send("GET", "publish", safe=True)

    async def withdraw(self, identifier: str) -> int:
        """Withdraw an entry; return how many were listed."""
        route = f"entries/{quote(identifier, safe='')}"
        answer = await self._registry.send("DELETE", route, safe=True)
        return int(answer.get("withdrawn", 0))

    async def beat(
        self, identifiers: Sequence[str], details: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Say that agents are alive; the answer says when to do so again (``interval``)."""
        body = {"identifiers": list(identifiers), "details": dict(details or {})}
        return await self._registry.send("POST", "heartbeats", body, safe=True)

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
        return await self._registry.send("POST", route, body, safe=True)

    async def add_source(self, url: str, *, vouches: bool = False) -> dict[str, Any]:
        """Have a site or a catalog read from now on."""
        body = {"url": url, "vouches": vouches}
        return await self._registry.send("POST", "operator/sources", body)

    async def waiting(self, standings: Sequence[str] = (), limit: int = 100) -> list[Any]:
        """Return entries by standing, for the operator; those that are not listed by default."""
        asked = {"limit": str(limit), **({"standing": ",".join(standings)} if standings else {})}
        route = f"operator/entries?{urlencode(asked)}"
        found = (await self._registry.send("GET", route, safe=True)).get("entries")
        return found if isinstance(found, list) else []

    async def decide(
        self, identifier: str, standing: str, reason: str = "", *, source: str = ""
    ) -> dict[str, Any]:
        """List, hold or reject an entry, as the operator."""
        body = {"standing": standing, "reason": reason, "source": source}
        route = f"operator/entries/{quote(identifier, safe='')}"
        return await self._registry.send("POST", route, body, safe=True)


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
