"""``parley.find`` and ``find_sync``: agents by need."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from parley.client.auth.credentials import Credential
from parley.client.bindings.http import HttpTransport, Tls
from parley.client.registry.found import FoundAgent
from parley.client.registry.places import RegistryReference
from parley.client.registry.remote_registry import FilterValues, RemoteRegistry, SearchesAgents
from parley.client.sync import run_in_thread
from parley.security.egress import Egress


async def find(
    need: str,
    *,
    registry: RegistryReference | SearchesAgents | None = None,
    filter: Mapping[str, FilterValues] | None = None,
    limit: int = 10,
    federation: str = "auto",
    auth: Credential | Sequence[Credential] | Literal[False] | None = None,
    headers: Mapping[str, str] | None = None,
    bearer: str | None = None,
    api_key: str | None = None,
    timeout: float | None = 30.0,
    retries: int = 2,
    insecure: bool = False,
    trust_origins: Sequence[str] = (),
    allow_private: bool | Iterable[str] = False,
    tls: ssl.SSLContext | Tls | None = None,
    proxy: str | None = None,
    egress: Egress | None = None,
    http: HttpTransport | None = None,
) -> list[FoundAgent]:
    """Return agents that meet a need, the best first: ``parley.find("currency conversion")``.

    Each can be called: ``async with parley.connect(found[0]) as agent: ...``. Texts of results are
    data of others, and their order says nothing about trust.

    ``registry`` is the address of a registry, a domain or the address of a catalog that names one,
    a catalog file (``"agents.json"``), a catalog as JSON, or an object with ``search``. A catalog
    without a registry is searched here, by words. Without it ``PARLEY_REGISTRY`` is asked, which
    may be any of the first five; there is no other default.

    ``filter`` has field paths and the values that one of must be there, as
    ``{"tags": ["finance"], "card.bindings": "GRPC"}``; without ``type`` in it, A2A agents are
    looked for. ``federation`` says whether the registry asks others (``auto``), names them
    (``referrals``) or neither (``none``).

    ``auth``, ``headers``, ``bearer`` and ``api_key`` are the registry's, and go to its origin and
    ``trust_origins`` only; agents that are found get none of them. What ``connect`` dials for an
    agent that is found has a public address, or one that ``allow_private`` names (hosts and
    networks, or ``True``). Agents of a registry on this machine may be here too, those in a catalog
    of your own anywhere. The other options are those of ``connect``.

    Raises ``NoRegistry`` (a ``ValueError``), ``NotARegistry``, ``RegistryRefused``,
    ``AuthenticationRequired``, and the errors of the network, which are ``ClientError``.
    """
    asked = RemoteRegistry(
        registry,
        auth=auth,
        headers=headers,
        bearer=bearer,
        api_key=api_key,
        timeout=timeout,
        retries=retries,
        insecure=insecure,
        trust_origins=trust_origins,
        allow_private=allow_private,
        tls=tls,
        proxy=proxy,
        egress=egress,
        http=http,
    )
    async with asked:
        return await asked.find(need, filter=filter, limit=limit, federation=federation)


def find_sync(need: str, **options: Any) -> list[FoundAgent]:
    """Return agents that meet a need, at once: the options are those of ``find``."""
    return run_in_thread(lambda: find(need, **options))
