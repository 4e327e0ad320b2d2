"""The options of a server: keyword, flag, variable, documentation and audit of each.

A field of ``ServerOptions`` is the option: it gives the keyword of ``parley.asgi`` and
``parley.serve``, its type and its default. Its ``Option`` gives the flag of ``parley serve``, the
environment variable, and the text of ``docs/reference/server-options.md``; ``record`` gives the
audit entry.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec.structs import force_setattr

from parley.model.option import Option
from parley.server.settings import Settings

if TYPE_CHECKING:
    from parley.agent.agent import Agent
    from parley.files.objects import ObjectStore
    from parley.host.bindings import ServerBinding
    from parley.model.service import Caller
    from parley.push.proofs import CertificateFiles, WebhookCertificate
    from parley.security.authorization import Policy
    from parley.security.egress import Egress
    from parley.security.schemes.scheme import Scheme, Security
    from parley.security.signing.keys import SigningKeys
    from parley.server.middleware import AnyMiddleware
    from parley.server.settings import GrpcOptions, TlsOptions
    from parley.store.bus.subscriptions import Bus
    from parley.store.task_store import TaskStore

    Allowed = bool | tuple[str, ...]

Identify = Callable[[Any], "Caller | Awaitable[Caller]"]
Role = Literal["both", "api", "worker"]

DRAIN_SECONDS = 10.0

_PROCESSES = "Many processes"
_CALLERS = "Who may call"
_SENT = "What is sent"
_AMOUNTS = "How much"
_CATALOG = "Catalog"


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``parley.asgi`` and ``parley.serve``. Times are in seconds.

    Raises ``ValueError`` and ``TypeError`` for options that no server can have.
    """

    host: Annotated[str, Option("Address to listen on; 0.0.0.0 for all.", metavar="HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", metavar="PORT")] = 9999
    config: Annotated[
        str | Path | None,
        Option(
            "A file of settings (TOML), read with all these variables. Keywords, flags and "
            "variables take precedence over it.",
            metavar="PATH",
            default="parley.toml in the current folder for parley serve; none for keywords",
        ),
    ] = None
    store: Annotated[
        str | TaskStore,
        Option(
            "Where tasks are kept: sqlite:///PATH (durable; sqlite:////PATH from the root), "
            "postgresql://USER@HOST/DATABASE (for many processes at a time), or memory: (gone with "
            "the process).",
            metavar="URL",
        ),
    ] = "sqlite:///parley.db"
    files: Annotated[
        str | Path | ObjectStore | None,
        Option(
            "Where to keep files that are too large for messages: a directory, s3://BUCKET/PREFIX, "
            "or none.",
            metavar="PLACE",
            default="next to a SQLite store; a temporary directory with memory:; none with "
            "PostgreSQL",
        ),
    ] = None
    url: Annotated[
        str | None,
        Option("The public address, for the cards, when a proxy in front hides it.", metavar="URL"),
    ] = None
    tenants: Annotated[
        Mapping[str, Agent],
        Option("Agents that answer at the root, selected by the tenant of requests.", flag=None),
    ] = {}
    drain: Annotated[
        float,
        Option(
            "The grace period of turns when the server stops, such as 10s.",
            metavar="TIME",
            default="10s",
        ),
    ] = DRAIN_SECONDS
    settings: Annotated[
        Settings, Option("Limits, times and rules of the server (parley.Settings).", flag=None)
    ] = None  # type: ignore[assignment]
    middleware: Annotated[
        tuple[AnyMiddleware, ...],
        Option(
            "Starlette's Middleware(cls, ...), or functions that take an ASGI app and return one, "
            "the first outermost: around every HTTP request, but not around gRPC.",
            flag=None,
        ),
    ] = ()
    bindings: Annotated[
        tuple[ServerBinding, ...],
        Option(
            "Bindings with settings of their own next to JSON-RPC, HTTP+JSON and gRPC; other "
            "installed ones have their defaults (docs/guides/extend-parley.md).",
            flag=None,
        ),
    ] = ()

    grpc_port: Annotated[
        int | None,
        Option("Port for gRPC; without it gRPC is off; 0 takes a free port.", "PORT", kind=int),
    ] = None
    grpc_host: Annotated[
        str | None,
        Option("Address to listen on for gRPC.", metavar="HOST", default="the address of --host"),
    ] = None
    grpc_cert: Annotated[
        str | Path | None,
        Option("Certificate for gRPC with TLS, with its chain (PEM).", metavar="FILE"),
    ] = None
    grpc_key: Annotated[str | Path | None, Option("Its private key (PEM).", metavar="FILE")] = None
    grpc_client_ca: Annotated[
        str | Path | None,
        Option(
            "Authorities of callers' certificates; other callers are rejected (PEM).",
            metavar="FILE",
        ),
    ] = None

    bus: Annotated[
        str | Bus | None,
        Option(
            "How processes that share a store notify one another of changes: redis://HOST, "
            "postgresql://..., or none (they poll four times a second).",
            metavar="URL",
            panel=_PROCESSES,
            default="the PostgreSQL store's own",
        ),
    ] = None
    workers: Annotated[
        int,
        Option(
            "How many processes serve the address, each for one core; above 1 on PostgreSQL only.",
            metavar="N",
            panel=_PROCESSES,
        ),
    ] = 1
    role: Annotated[
        Role,
        Option(
            "What this process does: takes requests and runs turns (both), leaves turns to others "
            "(api), or runs them and serves health checks alone (worker).",
            choices=("both", "api", "worker"),
            panel=_PROCESSES,
        ),
    ] = "both"
    lease: Annotated[
        float | None,
        Option(
            "How long a process may be silent before other processes claim its tasks, such as 15s.",
            metavar="TIME",
            panel=_PROCESSES,
            default="15s",
            kind=float,
        ),
    ] = None
    migrate: Annotated[
        bool,
        Option(
            "Do not migrate the store's schema, and fail if it is older; see parley store migrate.",
            flag="--no-migrate",
            panel=_PROCESSES,
            sets=False,
        ),
    ] = True

    caller: Annotated[
        Identify | None,
        Option(
            "A function of the ASGI scope that returns the Caller of a request, for agents without "
            "security; a plain def runs in a thread; an async def without await is fastest.",
            flag=None,
        ),
    ] = None
    auth: Annotated[
        Security | Literal[False] | None,
        Option(
            "The credentials that every agent of the server requires, in place of "
            "Agent(security=...); False verifies nothing.",
            flag=None,
        ),
    ] = None
    policy: Annotated[
        Policy | None,
        Option(
            "A function of an Access, called before the policies of the agents: all must allow.",
            flag=None,
        ),
    ] = None
    tls_cert: Annotated[
        str | Path | None,
        Option(
            "Certificate for HTTPS, with its chain (PEM); read again when it changes. gRPC uses it "
            "too, unless it has its own.",
            metavar="FILE",
            panel=_CALLERS,
        ),
    ] = None
    tls_key: Annotated[
        str | Path | None,
        Option(
            "Its private key (PEM). The passphrase of an encrypted key is in "
            "PARLEY_TLS_KEY_PASSWORD.",
            metavar="FILE",
            panel=_CALLERS,
        ),
    ] = None
    tls_client_ca: Annotated[
        str | Path | None,
        Option(
            "Authorities of callers' certificates (PEM): callers need one, unless agents accept "
            "other credentials too.",
            metavar="FILE",
            panel=_CALLERS,
        ),
    ] = None
    allow_anonymous: Annotated[
        bool,
        Option(
            "Let everyone call agents that require no credentials, from other machines too.",
            panel=_CALLERS,
        ),
    ] = False
    secret_key: Annotated[
        str | None,
        Option(
            "Encrypts the credentials that tasks wait for and the secrets of webhooks; the same "
            "key for all replicas. Without it the store keeps a key for the credentials, and the "
            "secrets are not encrypted.",
            variable="PARLEY_SECRET_KEY",
            secret=True,
            flag=None,
        ),
    ] = None
    signing_keys: Annotated[
        SigningKeys | str | Path | None,
        Option(
            "The private keys that sign cards and webhooks (parley keys generate); read again when "
            "they change. The default is the file that PARLEY_SIGNING_KEYS_FILE names, or the "
            "JSON in PARLEY_SIGNING_KEYS.",
            metavar="FILE",
            panel=_CALLERS,
            variable="PARLEY_SIGNING_KEYS_FILE",
            reads_itself=True,
        ),
    ] = None

    webhook_certificate: Annotated[
        WebhookCertificate | CertificateFiles | None,
        Option(
            "The client certificate for webhooks that ask for mutual TLS: its file and its key's.",
            flag=None,
        ),
    ] = None
    webhook_challenge: Annotated[
        bool,
        Option(
            "Send no notification to a webhook before its receiver has answered a challenge.",
            panel=_SENT,
        ),
    ] = False
    allow_private_webhooks: Annotated[
        Allowed,
        Option(
            "Send push notifications to private networks and to this machine too.",
            panel=_SENT,
            sets=True,
        ),
    ] = False
    allow_private_files: Annotated[
        Allowed,
        Option(
            "Let callers name files in private networks and on this machine.",
            panel=_SENT,
            sets=True,
        ),
    ] = False
    allow_private_agents: Annotated[
        Allowed | None,
        Option(
            "Let agents call others in private networks and on this machine.",
            panel=_SENT,
            default="on this machine, if only this machine reaches the server",
            sets=True,
        ),
    ] = None
    egress: Annotated[
        Egress | None,
        Option(
            "The policy for all requests that foreign data causes, to which the options "
            "allow_private_... add (Egress.of(allow=[...], deny=[...])).",
            default="PARLEY_EGRESS_ALLOW, PARLEY_EGRESS_DENY, PARLEY_EGRESS_ONLY_ALLOWED",
            flag=None,
        ),
    ] = None

    limits: Annotated[
        tuple[str, ...],
        Option(
            'The most that callers may use of all agents together, such as "60/minute per caller", '
            '"20 streams per caller" (in each process) or "artifact 10 MB"; repeat it.',
            flag="--limit",
            metavar="LIMIT",
            panel=_AMOUNTS,
            separator=";",
        ),
    ] = ()
    usage: Annotated[
        bool, Option("Count the usage of callers, for parley usage.", panel=_AMOUNTS)
    ] = False
    access_log: Annotated[
        bool, Option("Log each request: its operation, skill, caller, state and duration.")
    ] = False
    otlp: Annotated[
        str | None,
        Option(
            "A collector of OpenTelemetry, to which spans, metrics and logs are sent by OTLP over "
            "HTTP, such as http://collector:4318; none sends nothing.",
            metavar="URL",
            variable="OTEL_EXPORTER_OTLP_ENDPOINT",
            reads_itself=True,
        ),
    ] = None
    trace_content: Annotated[
        bool, Option("Let spans have content: messages, prompts, results, and the text of errors.")
    ] = False
    audit_retention: Annotated[
        timedelta | None,
        Option(
            "How long entries of the audit are kept, such as 400d.",
            metavar="SPAN",
            default="for ever",
            kind=timedelta,
        ),
    ] = None

    publisher: Annotated[
        str | None,
        Option(
            "A domain of yours, such as example.com: the server publishes a catalog of its agents, "
            "as urn:air:example.com:... (agent.localhost on one machine).",
            metavar="DOMAIN",
            panel=_CATALOG,
        ),
    ] = None
    namespace: Annotated[
        str | None,
        Option(
            "The part between the publisher and the name in identifiers.",
            metavar="NAME",
            panel=_CATALOG,
            default="agent",
        ),
    ] = None
    unlisted: Annotated[
        tuple[str, ...],
        Option(
            "The path of an agent, or a tenant, that the catalog leaves out; repeat it.",
            metavar="PATH|TENANT",
            panel=_CATALOG,
        ),
    ] = ()
    registry: Annotated[
        str | None,
        Option(
            "A registry in which the server publishes its catalog, and sends heartbeats; its "
            "credentials are PARLEY_TOKEN or PARLEY_API_KEY with PARLEY_AUTH_ORIGIN.",
            metavar="URL",
            panel=_CATALOG,
            # PARLEY_REGISTRY is another option: the registry that commands search
            variable="PARLEY_SERVER_REGISTRY",
        ),
    ] = None

    def __post_init__(self) -> None:
        from parley.security.authorization import checked_policy
        from parley.security.schemes.scheme import security_of

        if self.caller is not None and self.auth:
            raise ValueError(
                "give auth=, whose schemes identify the caller, or caller=, but not both"
            )
        if self.role not in ("both", "api", "worker"):
            raise ValueError(f"role is 'both', 'api' or 'worker', not {self.role!r}")
        if self.workers < 1:
            raise ValueError(f"workers={self.workers}: a server has one process at least")
        _ = self.tls, self.grpc  # these raise for options that contradict each other
        for name in _LISTS:
            force_setattr(self, name, _listed(getattr(self, name)))
        force_setattr(self, "tenants", dict(self.tenants or {}))
        force_setattr(self, "settings", self.settings or Settings())
        if self.auth is not None and self.auth is not False:
            force_setattr(self, "auth", security_of(self.auth, "auth"))
        if self.policy is not None:
            force_setattr(self, "policy", checked_policy(self.policy))

    @property
    def tls(self) -> TlsOptions | None:
        """The certificate of HTTPS. Raises ``ValueError`` for files that do not fit together."""
        from parley.server.settings import tls_options

        return tls_options(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def grpc(self) -> GrpcOptions | None:
        """The address and certificate of gRPC. Raises ``ValueError`` for these without a port."""
        from parley.server.settings import grpc_options

        return grpc_options(
            self.grpc_port,
            host=self.grpc_host,
            cert=self.grpc_cert,
            key=self.grpc_key,
            client_ca=self.grpc_client_ca,
        )

    @property
    def calls_machine(self) -> bool:
        """True if agents may call other agents on this machine: the server listens there only."""
        from parley.security.networks import is_loopback

        here = not self.grpc_host or is_loopback(self.grpc_host)
        return (
            here
            and self.allow_private_agents is None
            and is_of_this_machine(self.settings, self.url)
        )

    def record(self) -> dict[str, Any]:
        """Return the options for the audit. Secrets and objects are recorded as present only."""
        options = options_of(type(self))
        return {
            name: _recorded(getattr(self, name), options[name])
            for name in AppKeywords.__annotations__
        }


class AppKeywords(TypedDict, total=False):
    """The keywords of ``parley.asgi``; ``ServerOptions`` documents them."""

    store: str | TaskStore
    files: str | Path | ObjectStore | None
    url: str | None
    tenants: Mapping[str, Agent] | None
    drain: float
    config: str | Path | None
    settings: Settings | None
    middleware: Iterable[AnyMiddleware]
    bindings: Iterable[ServerBinding]
    bus: str | Bus | None
    role: Role
    lease: float | None
    migrate: bool
    caller: Identify | None
    auth: Scheme | Security | Literal[False] | None
    policy: Policy | None
    secret_key: str | None
    signing_keys: SigningKeys | str | Path | None
    webhook_certificate: WebhookCertificate | CertificateFiles | None
    webhook_challenge: bool
    allow_private_webhooks: bool | Iterable[str]
    allow_private_files: bool | Iterable[str]
    allow_private_agents: bool | Iterable[str] | None
    egress: Egress | None
    limits: Iterable[str]
    usage: bool
    access_log: bool
    otlp: str | None
    trace_content: bool
    audit_retention: timedelta | None
    publisher: str | None
    namespace: str | None
    unlisted: Iterable[str]
    registry: str | None


class ServeKeywords(AppKeywords, total=False):
    """The keywords of ``parley.serve``; ``ServerOptions`` documents them."""

    host: str
    port: int
    workers: int
    grpc_port: int | None
    grpc_host: str | None
    grpc_cert: str | Path | None
    grpc_key: str | Path | None
    grpc_client_ca: str | Path | None
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_client_ca: str | Path | None
    allow_anonymous: bool


_LISTS = (
    "bindings",
    "allow_private_webhooks",
    "allow_private_files",
    "allow_private_agents",
    "limits",
    "unlisted",
)


def _listed(value: Any) -> Any:
    """Return an iterable as a tuple, so it is read only once. Other values are checked later."""
    is_one = isinstance(value, str) or not isinstance(value, Iterable)
    return value if is_one else tuple(value)


class _Names(dict[str, Any]):
    """The names in annotations. Names that only type checkers import become ``Any``."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def is_of_this_machine(settings: Settings, url: str | None) -> bool:
    """Return whether all callers of a server that listens on this machine are on this machine.

    If they are, agents may call other agents of this machine, since the callers can do so as well.
    A server with a public address, or behind a proxy, has callers on other machines.
    """
    from parley.security.networks import is_loopback

    hosts = [each.rpartition(":")[0] or each for each in settings.allowed_hosts]
    if url:
        hosts.append(urlsplit(url).hostname or "")
    return not settings.trust_proxy and all(map(is_loopback, hosts))


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, in lower case."""
    return url.partition(":")[0].lower()


def shown(url: str) -> str:
    """Return a URL without its passwords."""
    try:
        parts = urlsplit(url)
        user, at, address = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        query = [
            (key, "..." if "pass" in key.lower() else value)
            for key, value in parse_qsl(parts.query, keep_blank_values=True)
        ]
        shown = parts._replace(netloc=name + at + address)
        if parts.query:
            shown = shown._replace(query=urlencode(query, quote_via=quote, safe="./:"))
        return urlunsplit(shown) if parts.netloc else url
    except ValueError:
        return f"{scheme_of(url)}:..."


_SECRET_VARIABLE = re.compile(r"(?:SECRET|PASSWORD|BEARER)$|^PARLEY_.*(?:KEYS?|TOKEN)$")
_KEY_VARIABLE = re.compile(r"(?:KEYS?|TOKEN)$")
_WORD = re.compile(r"[A-Za-z]{1,16}")  # SORT_KEY=created must not hide each "created" of a log


def secrets_of(options: ServerOptions, environment: Mapping[str, str]) -> list[str]:
    """Return the secrets of options and of an environment: logs do not show them."""
    found = [
        value
        for name, value in environment.items()
        if _SECRET_VARIABLE.search(name)
        or (_KEY_VARIABLE.search(name) and not _WORD.fullmatch(value))
    ]
    for name, option in options_of(type(options)).items():
        value = getattr(options, name)
        if isinstance(value, str):
            is_url = "://" in value
            found.append(value if option.secret else (urlsplit(value).password or "") * is_url)
    return found


@cache
def options_of(struct: type[msgspec.Struct]) -> dict[str, Option]:
    """Return the options that the fields of a struct declare, by their names."""
    names = _Names(vars(sys.modules[struct.__module__]))
    hints = get_type_hints(struct, localns=names, include_extras=True)
    return {
        name: option
        for name in struct.__struct_fields__
        for option in getattr(hints[name], "__metadata__", ())
        if isinstance(option, Option)
    }


def _recorded(value: Any, option: Option) -> Any:
    from parley.security.egress import Egress

    if option.secret:
        return value is not None
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Path | timedelta):
        return str(value)
    if isinstance(value, Settings):
        return msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, tuple):
        return [_recorded(each, option) for each in value]
    return repr(value) if isinstance(value, Egress) else True
