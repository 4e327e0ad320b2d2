"""The options of a registry, each defined once: as keyword of ``Registry`` and flag of a command.

A field of ``RegistryFlags`` is also a flag of ``parley registry serve``. The other options belong
to the server, which has its own flags, or are for Python only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from parley.model.option import Option

if TYPE_CHECKING:
    from parley.registry.federation.upstream import Upstream
    from parley.registry.health.settings import HealthSettings
    from parley.registry.ingest.fetching import IngestLimits
    from parley.registry.publishing.callers import PublishingLimits
    from parley.security.egress import Egress
    from parley.security.schemes.scheme import Scheme, Security
    from parley.security.signing.keys import SigningKeys
    from parley.server.settings import Settings
    from parley.store.task_store import TaskStore

INDEX = "sqlite:///registry.db"
NAME = "Registry of agents"

_READS = "What it reads"
CALLERS = "Who may call"


class RegistryFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a registry that are also command-line flags."""

    index: Annotated[
        Any,
        Option(
            "The index: sqlite:///PATH, postgresql://USER@HOST/DATABASE (for "
            "several processes at a time), or memory: (lost with the process).",
            "URL",
            flag="--store",
            variable="PARLEY_REGISTRY_STORE",
        ),
    ] = INDEX
    tasks: Annotated[
        Any,
        Option(
            "The store of its API keys and of its agent's tasks.",
            "URL",
            variable="PARLEY_REGISTRY_TASKS",
            default="beside --store",
        ),
    ] = None
    name: Annotated[str, Option("The name of the registry.", "TEXT")] = NAME
    sources: Annotated[
        tuple[str, ...],
        Option(
            "A domain whose catalogs are crawled (example.com), or the address of a catalog "
            "(.json); repeatable.",
            "URL",
            _READS,
            "--crawl",
        ),
    ] = ()
    entries: Annotated[
        tuple[str | Path, ...],
        Option("A catalog file, for whose entries you vouch; repeatable.", "FILE", _READS),
    ] = ()
    allow_private: Annotated[
        tuple[str, ...],
        Option(
            "A private host or network that may be crawled, also over http, such as 10.1.0.0/16 or "
            "agents.internal; repeatable.",
            "PLACE",
            _READS,
        ),
    ] = ()
    nameservers: Annotated[
        tuple[str, ...],
        Option(
            "A DNS server to use instead of the system's; repeatable.",
            "ADDRESS",
            _READS,
            "--nameserver",
        ),
    ] = ()
    upstreams: Annotated[
        tuple[Any, ...],
        Option(
            "The address of another registry to search as well; repeatable.",
            "URL",
            _READS,
            "--upstream",
        ),
    ] = ()
    meaning: Annotated[
        bool,
        Option(
            "Also search by meaning, with a small model (the extra meaning).",
            panel=_READS,
            flag="--by-meaning",
        ),
    ] = False
    public_search: Annotated[bool, Option("Allow searches without credentials.", panel=CALLERS)] = (
        False
    )


class RegistryOptions(RegistryFlags, frozen=True, kw_only=True):
    """The options of a registry.

    ``url`` is its public address; without it, ``address`` is the address for other registries.
    ``publisher`` is the domain of the operator: with it the registry publishes a catalog of itself.
    ``auth`` are the accepted credentials of callers; without it everyone may search, and no caller
    may publish or operate. Operators have the scope ``registry:operate``.

    ``egress`` is the policy for requests to untrusted addresses, to which ``allow_private`` adds
    networks and hosts. Sources on this machine are read if the registry serves this machine only.
    ``limits`` are the rate limits of callers: ``["60/minute per caller on searchAgents"]``; REST
    and the A2A agent are counted separately, and limits on operations apply to REST.
    """

    url: str | None = None
    address: str | None = None
    publisher: str | None = None
    auth: Scheme | Security | None = None
    egress: Egress | None = None
    limits: tuple[str, ...] = ()
    settings: Settings | None = None
    signing_keys: SigningKeys | str | Path | None = None
    migrate: bool = True
    access_log: bool = False
    otlp: str | None = None
    trace_content: bool = False
    ingest: IngestLimits | None = None
    publishing: PublishingLimits | None = None
    health: HealthSettings | None = None

    def __post_init__(self) -> None:
        if self.public_search and self.auth is None:
            raise ValueError(
                "public_search= allows searches without the credentials of auth=; "
                "without auth= everyone may search"
            )


class RegistryKeywords(TypedDict, total=False):
    """The keywords of ``Registry``; ``RegistryOptions`` documents them."""

    tasks: str | TaskStore | None
    name: str
    sources: Iterable[str]
    entries: Iterable[str | Path]
    allow_private: Iterable[str]
    nameservers: Iterable[str]
    upstreams: Iterable[str | Upstream]
    meaning: bool
    public_search: bool
    url: str | None
    address: str | None
    publisher: str | None
    auth: Scheme | Security | None
    egress: Egress | None
    limits: Iterable[str]
    settings: Settings | None
    signing_keys: SigningKeys | str | Path | None
    migrate: bool
    access_log: bool
    otlp: str | None
    trace_content: bool
    ingest: IngestLimits | None
    publishing: PublishingLimits | None
    health: HealthSettings | None
