"""Every setting of the client commands, once, as data."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from parley.cli.output.text import shell_words
from parley.cli.settings.dotenv import PREFIX
from parley.host.program import DEFAULT_ADDRESS

Kind = Literal["text", "choice", "flag", "list", "duration", "limit", "number", "object"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its canonical flag without dashes, and its help.

    ``flags`` are all spellings; ``off`` the negative ones. A ``local`` setting comes only from the
    command line. One that ``routes_credentials`` decides where credentials go, or how their
    connection is protected. Those that are ``is_protected`` belong together: where the user sets
    one of them, none is taken from a file that was found and not named.
    """

    name: str
    kind: Kind = "text"
    flags: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    default: Any = None
    default_text: str = ""
    metavar: str = ""
    panel: str = ""
    help: str
    secret: bool = False
    local: bool = False
    routes_credentials: bool = False
    is_protected: bool = False

    @property
    def field(self) -> str:
        """The setting's name in Python."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The setting's name in the environment and in ``.env`` files."""
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flags that set it."""
        return self.flags or (f"--{self.name}",)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="agent-card",
        flags=("-a", "--agent-card"),
        default=DEFAULT_ADDRESS,
        metavar="REF",
        panel="Agent",
        help="The agent: a host, an address, the URL of a card, or a card file.",
        routes_credentials=True,
    ),
    Setting(
        name="trust-origin",
        kind="list",
        default=(),
        default_text="the agent's own",
        metavar="ORIGIN",
        panel="Agent",
        help="Another origin that may have the credentials, such as https://host:8443; repeatable.",
        routes_credentials=True,
    ),
    Setting(
        name="require-signature",
        kind="flag",
        off=("--no-require-signature",),
        default=False,
        default_text="signatures of cards are not required",
        panel="Trust",
        help="Refuse a card without a signature of a trusted key: by default, of one that is "
        "published at the card's own origin.",
        routes_credentials=True,
        is_protected=True,
    ),
    Setting(
        name="card-keys",
        kind="list",
        default=(),
        default_text="those that are published",
        metavar="PATH",
        panel="Trust",
        help="Trust only the keys in this file (JWK, JWK Set or PEM) to sign cards; repeatable. "
        "It implies --require-signature.",
        routes_credentials=True,
        is_protected=True,
    ),
    Setting(
        name="card-key-origin",
        kind="list",
        default=(),
        default_text="the card's own",
        metavar="ORIGIN",
        panel="Trust",
        help="Another origin whose published keys may sign cards, such as https://keys.host; "
        "repeatable.",
        routes_credentials=True,
        is_protected=True,
    ),
    Setting(
        name="transport",
        kind="list",
        default=(),
        default_text="the card's own order",
        metavar="BINDING",
        panel="Agent",
        help="Preferred binding; repeat it, best first. Those not on the card are skipped.",
    ),
    Setting(
        name="a2a-version",
        default_text="1.0",
        metavar="1.0|0.3",
        panel="Agent",
        help="Protocol version to speak. Older ones than 1.0 are spoken only if named here.",
    ),
    Setting(
        name="svc-param",
        kind="list",
        default=(),
        metavar="NAME:VALUE",
        panel="Agent",
        help="Add a service parameter (over HTTP, a header) to every request; repeatable "
        "(in A2ACLI_SVC_PARAM: one a line).",
    ),
    Setting(
        name="extension",
        kind="list",
        default=(),
        default_text="those that the agent requires and parley knows",
        metavar="URI",
        panel="Agent",
        help="Activate an extension that the agent declares (A2A-Extensions): its URI, or the name "
        "of an installed one; repeatable.",
    ),
    Setting(
        name="insecure",
        kind="flag",
        off=("--no-insecure",),
        default=False,
        default_text="certificates are checked",
        panel="Agent",
        help="Do not check the server's certificate. For development only.",
        routes_credentials=True,
    ),
    Setting(
        name="ca-file",
        metavar="PATH",
        default_text="the system's authorities",
        panel="Connection",
        help="Trust the authorities in this PEM file, in place of the system's.",
        routes_credentials=True,
    ),
    Setting(
        name="client-cert",
        metavar="PATH",
        panel="Connection",
        help="A certificate to show to the agent (mutual TLS), as a PEM file.",
    ),
    Setting(
        name="client-key",
        metavar="PATH",
        default_text="in the file of --client-cert",
        panel="Connection",
        help="The key of --client-cert, as a PEM file without a password.",
    ),
    Setting(
        name="proxy",
        metavar="URL",
        panel="Connection",
        help="Call through this HTTP proxy, such as http://proxy.example.com:3128.",
        routes_credentials=True,
    ),
    Setting(
        name="bearer",
        metavar="TOKEN",
        panel="Credentials",
        secret=True,
        help="Bearer token. Better in A2ACLI_BEARER.",
    ),
    Setting(
        name="api-key",
        metavar="KEY",
        panel="Credentials",
        secret=True,
        help="API key, sent where the card says. Better in A2ACLI_API_KEY.",
    ),
    Setting(
        name="context-id",
        metavar="ID",
        panel="Interaction",
        help="A context that the agent named before.",
    ),
    Setting(
        name="task-id",
        metavar="ID",
        panel="Interaction",
        help="Continue this task, for example to answer its question.",
    ),
    Setting(
        name="skill",
        metavar="ID",
        default_text="the agent chooses",
        panel="Interaction",
        help="The skill that the message is for, by its id on the card (parley card get).",
    ),
    Setting(
        name="metadata",
        kind="object",
        metavar="JSON",
        panel="Interaction",
        help='Metadata of the request, a JSON object such as \'{"priority":"low"}\'.',
    ),
    Setting(
        name="history",
        kind="number",
        default_text="as the agent sees fit",
        metavar="N",
        panel="Interaction",
        help="How many messages of a task's history to ask for.",
    ),
    Setting(
        name="async",
        kind="flag",
        flags=("--async", "--no-wait", "--return-immediately"),
        default=False,
        default_text="wait for the task",
        panel="Waiting",
        help="Do not wait; report the task's ids at once.",
    ),
    Setting(
        name="wait",
        kind="flag",
        flags=("--wait", "--watch"),
        off=("--no-wait",),
        panel="Waiting",
        help="Wait until the task ends or asks for something.",
    ),
    Setting(
        name="poll-interval",
        kind="duration",
        default=2.0,
        default_text="2s",
        metavar="TIME",
        panel="Waiting",
        help="How often to ask for the task's state where the agent cannot stream.",
    ),
    Setting(
        name="timeout",
        kind="limit",
        default_text="none",
        metavar="TIME",
        panel="Waiting",
        help="Give up after this time (500ms, 2s, 1m; 'none' for no limit).",
    ),
    Setting(
        name="output",
        kind="choice",
        flags=("-o", "--output"),
        choices=("text", "json"),
        default="text",
        metavar="text|json",
        panel="Output",
        help="Labelled text, or the protocol's own JSON.",
    ),
    Setting(
        name="stream",
        kind="flag",
        default=False,
        panel="Output",
        help="Show events as they come; with -o json, one JSON object a line.",
        local=True,
    ),
    Setting(
        name="verbose",
        kind="flag",
        off=("--no-verbose",),
        default=False,
        default_text="concise",
        panel="Output",
        help="Show everything that was exchanged with the agent.",
    ),
    Setting(
        name="debug",
        kind="flag",
        off=("--no-debug",),
        default=False,
        panel="Output",
        help="Log requests, timing and decisions to stderr. Credentials are never shown.",
    ),
    Setting(
        name="config",
        metavar="PATH",
        panel="Output",
        help="Read this .env file in place of the local one.",
    ),
)

BY_FIELD: dict[str, Setting] = {setting.field: setting for setting in SETTINGS}


class CredentialRedirect(msgspec.Struct, frozen=True):
    """A discovered file decides where credentials go that are not its own.

    ``variable`` is the variable that it sets, ``flag`` the same as an option, ``credential`` what
    would go there, and ``origin`` the credential's source.
    """

    file: str
    variable: str
    flag: str
    credential: str
    origin: str

    def __str__(self) -> str:
        return (
            f"{self.file}, which was found and not named, sets {self.variable}; that decides where "
            f"credentials go or how they are protected, and {self.credential} is not from this "
            f"file ({self.origin})"
        )

    @property
    def remedy(self) -> str:
        """The ways to allow or avoid it."""
        return (
            f"say it yourself with {self.flag}, or say that you trust the file with "
            f"--config {shell_words([self.file])}; or keep the credentials in the file"
        )


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings of one command, with their ``sources`` by field.

    ``credential_redirect`` is the reason why their credentials must not be sent, if any;
    ``protection_file`` is a discovered file that decides how connections are protected, or which
    other origins are trusted: logins are not used then.
    """

    agent_card: str
    trust_origin: tuple[str, ...]
    require_signature: bool
    card_keys: tuple[str, ...]
    card_key_origin: tuple[str, ...]
    transport: tuple[str, ...]
    a2a_version: str | None
    svc_param: tuple[str, ...]
    extension: tuple[str, ...]
    insecure: bool
    ca_file: str | None
    client_cert: str | None
    client_key: str | None
    proxy: str | None
    bearer: str | None
    api_key: str | None
    context_id: str | None
    task_id: str | None
    skill: str | None
    metadata: dict[str, Any] | None
    history: int | None
    async_: bool
    wait: bool | None
    poll_interval: float
    timeout: float | None
    output: str
    stream: bool
    verbose: bool
    debug: bool
    config: str | None
    sources: dict[str, str]
    credential_redirect: CredentialRedirect | None = None
    protection_file: str | None = None

    @property
    def is_json(self) -> bool:
        """True if results are JSON."""
        return self.output == "json"

    def is_flag(self, field: str) -> bool:
        """Return whether the setting is on this command line."""
        return self.sources[field] == FLAG


FLAG = "flag"
DEFAULT = "default"
