"""The table of the client commands' settings: a field for each, with its type, default and help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

import msgspec

from parley.cli.output.text import shell_words
from parley.host.program import DEFAULT_ADDRESS

PREFIX = "A2ACLI_"
FLAG = "flag"
DEFAULT = "default"

Text = str | None
Texts = tuple[str, ...]

_KINDS: dict[Any, str] = {
    bool: "flag",
    bool | None: "flag",
    Texts: "list",
    float: "duration",
    float | None: "limit",
    int | None: "number",
    dict[str, Any] | None: "object",
}
"""The kinds of settings by the types of their values; other settings are texts."""


class Setting(msgspec.Struct, frozen=True):
    """A setting: its help, and its flags and variable.

    ``flags`` are all spellings; a command drops a later spelling that another of its settings uses.
    ``off`` are the negative flags. A ``local`` setting comes only from the command line. A setting
    that ``routes_credentials`` controls where credentials go, or how their connection is protected.
    Settings that are ``is_protected`` belong together: if the user sets one of them, none is read
    from a file that was found automatically. ``names`` is its variable, if it is not from the
    specification. ``name`` is the canonical flag without dashes.
    """

    help: str
    panel: str
    metavar: str = ""
    default_text: str = ""
    flags: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    secret: bool = False
    local: bool = False
    routes_credentials: bool = False
    is_protected: bool = False
    names: str = ""
    name: str = ""
    kind: str = "text"
    default: Any = None

    @property
    def field(self) -> str:
        """The setting's name in Python."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The setting's name in the environment and in ``.env`` files."""
        return self.names or PREFIX + self.field.upper()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flags that set it."""
        return self.flags or (f"--{self.name}",)


class CredentialRedirect(msgspec.Struct, frozen=True):
    """A discovered file redirects credentials that it does not contain.

    ``variable`` is the variable in the file, ``flag`` the same setting as an option, ``credential``
    the redirected credential, and ``origin`` the credential's source.
    """

    file: str
    variable: str
    flag: str
    credential: str
    origin: str

    def __str__(self) -> str:
        return (
            f"{self.file}, which was found automatically rather than named, sets {self.variable}; "
            "this controls where "
            f"credentials go or how they are protected, and {self.credential} is not from this "
            f"file ({self.origin})"
        )

    @property
    def remedy(self) -> str:
        """Advice on how to allow or avoid it."""
        return (
            f"give {self.flag} yourself, or trust the file with "
            f"--config {shell_words([self.file])}; or keep the credentials in the file"
        )


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings of one command, with their ``sources`` by field.

    ``credential_redirect`` is the reason why their credentials must not be sent, if any;
    ``protection_file`` is a discovered file that controls how connections are protected, or which
    other origins are trusted: logins are not used then.
    """

    agent_card: Annotated[
        str,
        Setting(
            "The agent: a URL, a host, a card file, or its identifier in a registry (urn:...).",
            "Agent",
            "REF",
            flags=("-a", "--agent-card"),
            routes_credentials=True,
        ),
    ] = DEFAULT_ADDRESS
    trust_origin: Annotated[
        tuple[str, ...],
        Setting(
            "Another origin that may receive the credentials, such as https://host:8443; "
            "repeatable.",
            default_text="the agent's own",
            metavar="ORIGIN",
            panel="Agent",
            routes_credentials=True,
        ),
    ] = ()
    require_signature: Annotated[
        bool,
        Setting(
            "Reject a card without a signature by a trusted key: by default, a key that is "
            "published at the card's own origin.",
            off=("--no-require-signature",),
            default_text="signatures of cards are not required",
            panel="Trust",
            routes_credentials=True,
            is_protected=True,
        ),
    ] = False
    card_keys: Annotated[
        tuple[str, ...],
        Setting(
            "Trust only the keys in this file (JWK, JWK Set or PEM) to sign cards; repeatable. "
            "It implies --require-signature.",
            default_text="the published keys",
            metavar="PATH",
            panel="Trust",
            routes_credentials=True,
            is_protected=True,
        ),
    ] = ()
    card_key_origin: Annotated[
        tuple[str, ...],
        Setting(
            "Another origin whose published keys may sign cards, such as https://keys.host; "
            "repeatable.",
            default_text="the card's own",
            metavar="ORIGIN",
            panel="Trust",
            routes_credentials=True,
            is_protected=True,
        ),
    ] = ()
    transport: Annotated[
        tuple[str, ...],
        Setting(
            "Preferred binding; repeatable, best first. Bindings not on the card are skipped.",
            default_text="the card's own order",
            metavar="BINDING",
            panel="Agent",
        ),
    ] = ()
    a2a_version: Annotated[
        str | None,
        Setting(
            "Protocol version to use. Versions before 1.0 are used only if named here.",
            default_text="1.0",
            metavar="1.0|0.3",
            panel="Agent",
        ),
    ] = None
    svc_param: Annotated[
        tuple[str, ...],
        Setting(
            "Add a service parameter (over HTTP, a header) to every request; repeatable "
            "(in A2ACLI_SVC_PARAM: one per line).",
            metavar="NAME:VALUE",
            panel="Agent",
        ),
    ] = ()
    extension: Annotated[
        tuple[str, ...],
        Setting(
            "Activate an extension that the agent declares (A2A-Extensions): its URI, or the name "
            "of an installed extension; repeatable.",
            default_text="required extensions that parley supports",
            metavar="URI",
            panel="Agent",
        ),
    ] = ()
    insecure: Annotated[
        bool,
        Setting(
            "Do not check the server's certificate. For development only.",
            off=("--no-insecure",),
            default_text="certificates are checked",
            panel="Agent",
            routes_credentials=True,
        ),
    ] = False
    ca_file: Annotated[
        str | None,
        Setting(
            "Trust the authorities in this PEM file, instead of the system's.",
            metavar="PATH",
            default_text="the system's authorities",
            panel="Connection",
            routes_credentials=True,
        ),
    ] = None
    client_cert: Annotated[
        str | None,
        Setting(
            "A client certificate for the agent (mutual TLS), as a PEM file.",
            metavar="PATH",
            panel="Connection",
        ),
    ] = None
    client_key: Annotated[
        str | None,
        Setting(
            "The key of --client-cert, as a PEM file without a password.",
            metavar="PATH",
            default_text="in the file of --client-cert",
            panel="Connection",
        ),
    ] = None
    proxy: Annotated[
        str | None,
        Setting(
            "Call through this HTTP proxy, such as http://proxy.example.com:3128.",
            metavar="URL",
            panel="Connection",
            routes_credentials=True,
        ),
    ] = None
    bearer: Annotated[
        str | None,
        Setting(
            "Bearer token. Better in A2ACLI_BEARER.",
            metavar="TOKEN",
            panel="Credentials",
            secret=True,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        Setting(
            "API key, sent as the card declares. Better in A2ACLI_API_KEY.",
            metavar="KEY",
            panel="Credentials",
            secret=True,
        ),
    ] = None
    registry: Annotated[
        Text,
        Setting(
            "The registry: its address, a domain, or a catalog file. PARLEY_REGISTRY names it too.",
            "Registry",
            "URL|DOMAIN|FILE",
            names="PARLEY_REGISTRY",
            routes_credentials=True,
        ),
    ] = None
    registry_bearer: Annotated[
        Text,
        Setting(
            "Bearer token for the registry. Better in PARLEY_REGISTRY_BEARER.",
            "Registry",
            "TOKEN",
            flags=("--registry-bearer", "--bearer"),
            names="PARLEY_REGISTRY_BEARER",
            secret=True,
        ),
    ] = None
    registry_api_key: Annotated[
        Text,
        Setting(
            "API key for the registry. Better in PARLEY_REGISTRY_API_KEY.",
            "Registry",
            "KEY",
            flags=("--registry-api-key", "--api-key"),
            names="PARLEY_REGISTRY_API_KEY",
            secret=True,
        ),
    ] = None
    context_id: Annotated[
        str | None,
        Setting("Continue in this context of the agent.", metavar="ID", panel="Interaction"),
    ] = None
    task_id: Annotated[
        str | None,
        Setting(
            "Continue this task, for example to answer its question.",
            metavar="ID",
            panel="Interaction",
        ),
    ] = None
    skill: Annotated[
        str | None,
        Setting(
            "The skill that the message is for, by its id on the card (parley card get).",
            metavar="ID",
            default_text="the agent chooses",
            panel="Interaction",
        ),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None,
        Setting(
            'Metadata of the request, a JSON object such as \'{"priority":"low"}\'.',
            metavar="JSON",
            panel="Interaction",
        ),
    ] = None
    history: Annotated[
        int | None,
        Setting(
            "How many messages of a task's history to request.",
            default_text="chosen by the agent",
            metavar="N",
            panel="Interaction",
        ),
    ] = None
    async_: Annotated[
        bool,
        Setting(
            "Do not wait; report the task's ids at once.",
            flags=("--async", "--no-wait", "--return-immediately"),
            default_text="wait for the task",
            panel="Waiting",
        ),
    ] = False
    wait: Annotated[
        bool | None,
        Setting(
            "Wait until the task ends or asks for something.",
            flags=("--wait", "--watch"),
            off=("--no-wait",),
            panel="Waiting",
        ),
    ] = None
    poll_interval: Annotated[
        float,
        Setting(
            "How often to poll the task's state if the agent cannot stream.",
            default_text="2s",
            metavar="TIME",
            panel="Waiting",
        ),
    ] = 2.0
    timeout: Annotated[
        float | None,
        Setting(
            "Give up after this time (500ms, 2s, 1m; 'none' for no limit).",
            default_text="none",
            metavar="TIME",
            panel="Waiting",
        ),
    ] = None
    output: Annotated[
        str,
        Setting(
            "Labelled text, or the protocol's own JSON.",
            flags=("-o", "--output"),
            choices=("text", "json"),
            metavar="text|json",
            panel="Output",
        ),
    ] = "text"
    stream: Annotated[
        bool,
        Setting(
            "Show events as they come; with -o json, one JSON object per line.",
            panel="Output",
            local=True,
        ),
    ] = False
    verbose: Annotated[
        bool,
        Setting(
            "Show the complete exchange with the agent.",
            off=("--no-verbose",),
            default_text="concise",
            panel="Output",
        ),
    ] = False
    debug: Annotated[
        bool,
        Setting(
            "Log requests, timing and decisions to stderr. Credentials are never shown.",
            off=("--no-debug",),
            panel="Output",
        ),
    ] = False
    config: Annotated[
        str | None,
        Setting("Read this .env file instead of the local one.", metavar="PATH", panel="Output"),
    ] = None
    sources: dict[str, str]
    credential_redirect: CredentialRedirect | None = None
    protection_file: str | None = None

    @property
    def secrets(self) -> tuple[str | None, ...]:
        """The credentials, which are never shown."""
        return self.bearer, self.api_key, self.registry_bearer, self.registry_api_key

    @property
    def is_json(self) -> bool:
        """Return whether results are JSON."""
        return self.output == "json"

    def is_flag(self, field: str) -> bool:
        """Return whether the setting is on this command line."""
        return self.sources[field] == FLAG


def _settings() -> Iterator[Setting]:
    hints = get_type_hints(CommandSettings, include_extras=True)
    for field in msgspec.structs.fields(CommandSettings):
        for setting in getattr(hints[field.name], "__metadata__", ()):
            kind = _KINDS.get(hints[field.name].__origin__, "text")
            yield msgspec.structs.replace(
                setting,
                name=field.name.strip("_").replace("_", "-"),
                kind="choice" if setting.choices else kind,
                default=field.default,
            )


SETTINGS = tuple(_settings())
BY_FIELD: dict[str, Setting] = {setting.field: setting for setting in SETTINGS}
