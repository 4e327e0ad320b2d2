"""The options of a registry, each once: the keyword of ``Registry``, and the flag of a command.

A field of ``RegistryFlags`` is a flag of ``parley registry serve`` too. The other options are those
of a server, which the command takes from there, or for Python alone.
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
    """The options of a registry that a command line has too."""

    index: Annotated[
        Any,
        Option(
            "Where it keeps what it knows: sqlite:///PATH, postgresql://USER@HOST/DATABASE (for "
            "many processes at a time), or memory: (gone with the process).",
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
    name: Annotated[str, Option("What it is called.", "TEXT")] = NAME
    sources: Annotated[
        tuple[str, ...],
        Option(
            "A domain whose catalogs are looked for (example.com), or the address of a catalog "
            "(.json); repeat it.",
            "URL",
            _READS,
            "--crawl",
        ),
    ] = ()
    entries: Annotated[
        tuple[str | Path, ...],
        Option("A catalog in a file, for whose entries you vouch; repeat it.", "FILE", _READS),
    ] = ()
    allow_private: Annotated[
        tuple[str, ...],
        Option(
            "A private host or network that may be read, over http too, such as 10.1.0.0/16 or "
            "agents.internal; repeat it.",
            "PLACE",
            _READS,
        ),
    ] = ()
    nameservers: Annotated[
        tuple[str, ...],
        Option(
            "A DNS server to ask, in place of the system's; repeat it.",
            "ADDRESS",
            _READS,
            "--nameserver",
        ),
    ] = ()
    upstreams: Annotated[
        tuple[Any, ...],
        Option(
            "The address of another registry to ask too; repeat it.", "URL", _READS, "--upstream"
        ),
    ] = ()
    meaning: Annotated[
        bool,
        Option(
            "Search by meaning too, with a small model (the extra meaning).",
            panel=_READS,
            flag="--by-meaning",
        ),
    ] = False
    public_search: Annotated[
        bool, Option("Let everyone search; credentials are for the rest.", panel=CALLERS)
    ] = False


class RegistryOptions(RegistryFlags, frozen=True, kw_only=True):
    """The options of a registry.

    ``url`` is its public address; without one, ``address`` is where other registries reach it.
    ``publisher`` is the domain of who runs it: with that it publishes a catalog of itself.
    ``auth`` is what callers prove themselves with; without it everyone may search, and nobody may
    publish or operate. Operators have the scope ``registry:operate``.

    ``egress`` is where requests to addresses of others may go, to which ``allow_private`` adds
    networks and hosts. Sources on this machine are read if the registry serves this machine alone.
    ``limits`` are how much callers may take: ``["60/minute per caller on searchAgents"]``; REST and
    the A2A agent count apart, and limits on operations are for REST.
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
    ingest: IngestLimits | None = None
    publishing: PublishingLimits | None = None
    health: HealthSettings | None = None

    def __post_init__(self) -> None:
        if self.public_search and self.auth is None:
            raise ValueError(
                "public_search= lets everyone search beside those with credentials (auth=); "
                "without auth= everyone may search anyway"
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
    ingest: IngestLimits | None
    publishing: PublishingLimits | None
    health: HealthSettings | None
