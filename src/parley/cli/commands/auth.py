"""``parley auth``: logs in to an agent for later commands and programs; lists logins; logs out."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.redaction import Redactor, without_user
from parley.cli.output.streams import Output
from parley.cli.settings.options import EXIT_HELP, SOURCES_HELP, CommandOption
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.client.auth.logins import KeptLogin
    from parley.client.card.resolver import ResolvedCard
    from parley.client.origin import Origin

EXAMPLES = """\b
Examples:
  parley auth login https://bank.example.com          by its card's scheme
  parley auth login https://bank.example.com --scope pay
  parley auth login https://bank.example.com --flow client-credentials \\
    --client-id nightly-report                with PARLEY_CLIENT_SECRET set
  parley auth status
  parley auth logout https://bank.example.com"""
KEPT = """\b
A login is for one origin (scheme, host and port), and only sent there. It
is stored in the system's keyring; without one, in a file that only you can read.
PARLEY_AUTH_STORAGE=file or =keyring chooses."""
SECRETS = """\b
Secrets are requested on the terminal, or read from standard input; the secret of a
client comes from PARLEY_CLIENT_SECRET, a key from A2ACLI_API_KEY, a token from
A2ACLI_BEARER."""
CLIENT_SECRET = "PARLEY_CLIENT_SECRET"
OPTIONS = (
    "agent_card", "registry", "insecure", "ca_file", "client_cert", "client_key", "proxy",
    "timeout", "output", "verbose", "debug", "config",
)  # fmt: skip
PANEL = "Login"
FLOWS_OF_ISSUERS = ("authorization-code", "device-code", "client-credentials")

COMMANDS = Commands("auth", "Log in to agents, list your logins, log out.")


class LoginOptions(msgspec.Struct, frozen=True):
    """The options of ``parley auth login``."""

    flow: Annotated[
        str,
        CommandOption(
            "authorization-code (with a browser), device-code, client-credentials, api-key, basic "
            "or bearer.",
            "FLOW",
            PANEL,
            default="from the card",
        ),
    ] = ""
    client_id: Annotated[
        str, CommandOption("The client to log in as.", "ID", PANEL, default="a new registration")
    ] = ""
    scope: Annotated[
        tuple[str, ...],
        CommandOption(
            "A scope to request in addition to the card's scopes; repeatable.", "SCOPE", PANEL
        ),
    ] = ()
    issuer: Annotated[
        str, CommandOption("The issuer, instead of the card's issuer.", "URL", PANEL)
    ] = ""
    audience: Annotated[
        str, CommandOption("The audience of the token, if the issuer needs it.", "TEXT", PANEL)
    ] = ""
    resource: Annotated[
        str, CommandOption("The audience as a resource (RFC 8707).", "URL", PANEL)
    ] = ""
    user: Annotated[
        str, CommandOption("The user of HTTP Basic; requested if left out.", "NAME", PANEL)
    ] = ""


@COMMANDS.add(
    "login",
    *OPTIONS,
    "bearer",
    "api_key",
    epilog=f"{EXAMPLES}\n\n{KEPT}\n\n{SECRETS}\n\n{EXIT_HELP}\n\n{SOURCES_HELP}",
)
async def login(call: AgentCall, options: LoginOptions) -> None:
    """Log in to an agent by its card's security schemes, and save the login for later calls.

    An expired token is renewed automatically. Your programs that connect to the same origin use the
    login too.
    """
    from parley.client.auth import logins as signing

    if options.flow and options.flow not in signing.FLOWS:
        raise UsageFailure(f"--flow: {options.flow!r} is not one of {', '.join(signing.FLOWS)}")
    wish = signing.SignIn(
        flow=options.flow,
        scopes=signing.scopes_of(options.scope),
        client_id=options.client_id,
        issuer=options.issuer,
        audience=options.audience,
        resource=options.resource,
    )
    settings, output = call.settings, call.output
    if not call.uses_logins:
        raise UsageFailure(
            f"{settings.protection_file}, which was found automatically rather than named, "
            "controls how connections "
            "are protected",
            hint="name it with --config to trust it, or log in from another folder",
        )
    resolved = await _card_of(call, may_be_closed=bool(wish.flow))
    origin = _origin_of(call, resolved)
    flow, scheme, scopes = (
        signing.pick_scheme(resolved.card, wish.flow) if resolved else (wish.flow, None, ())
    )
    if not flow or (scheme is None and flow in FLOWS_OF_ISSUERS and not wish.issuer):
        raise UsageFailure(*_no_way(resolved, flow))
    wish = msgspec.structs.replace(
        wish, flow=flow, scheme=scheme, scopes=tuple(dict.fromkeys((*scopes, *wish.scopes)))
    )
    address = without_user(call.address)
    if flow in (signing.API_KEY, signing.BASIC, signing.BEARER):
        signing.check_encrypted(origin, settings.insecure)
        user = options.user
        if flow == signing.BASIC and not user:
            user = _ask("User: ")
        known = {signing.API_KEY: settings.api_key, signing.BEARER: settings.bearer}
        words = {signing.API_KEY: "API key: ", signing.BEARER: "Bearer token: "}
        secret = known.get(flow) or _ask(words.get(flow, "Password: "), is_secret=True)
        output.redact = Redactor((secret,))
        kept = signing.kept_secret(origin, flow, secret, address=address, user=user)
        signing.check_usable(kept)
    else:
        secret = _client_secret(flow, wish.client_id)
        output.redact = Redactor((secret,))
        wish = msgspec.structs.replace(wish, client_secret=secret)
        async with call.http() as http:
            kept = await signing.sign_in(
                wish,
                origin,
                address=address,
                http=http,
                insecure=settings.insecure,
                open_url=lambda url: _open(output, url),
                prompt=lambda prompt: output.note(str(prompt)),
            )
    _keep(output, kept)


@COMMANDS.add("status", "output", "verbose", "debug", "config", epilog=KEPT)
def status(settings: CommandSettings, output: Output) -> None:
    """List your logins with their agents, issuers and expiry."""
    from parley.client.auth.logins import Logins

    logins = Logins()
    with _storage():
        found, place = logins.all(), logins.place
    output.report(
        {"logins": [_described(each) for each in found], "keptIn": place},
        *[field for each in found for field in _fields(each)],
        ("Logins", len(found)),
        ("Kept in", place),
    )


class Logout(msgspec.Struct, frozen=True):
    """The options of ``parley auth logout``."""

    everything: Annotated[
        bool, CommandOption("Log out of all agents.", panel=PANEL, flag="--all")
    ] = False


@COMMANDS.add("logout", *OPTIONS, epilog=KEPT)
async def logout(call: AgentCall, options: Logout) -> None:
    """Delete a login, and revoke its tokens at the issuer if possible."""
    from parley.client.auth.logins import Logins, sign_out
    from parley.client.origin import Origin

    output, logins, revoked = call.output, Logins(), list[str]()
    with _storage():
        if options.everything:
            found = logins.all()
        else:
            is_named = isinstance(call.reference, str) and not _is_file(call.address)
            resolved = None if is_named else await _card_of(call, may_be_closed=True)
            origin = _origin_of(call, resolved)
            kept = logins.find(origin)
            found = [] if kept is None else [kept]
            if kept is None:
                raise CommandFailure(
                    "A2ACLI_ERR_CREDENTIALS_MISSING",
                    f"there is no login for {origin}",
                    hint="parley auth status lists your logins",
                )
        async with call.http() as http:
            for each in found:
                logins.remove(Origin.parse(each.origin))
                if await sign_out(each, http):
                    revoked.append(each.origin)
    told = {each.origin: each.origin in revoked or not each.access_token for each in found}
    output.report(
        {"loggedOut": [*told], "revoked": revoked},
        *[
            ("Logged out", each + ("" if is_told else " (not revoked at its issuer)"))
            for each, is_told in told.items()
        ],
    )


@contextmanager
def _storage(before: str = "", hint: str | None = None) -> Iterator[None]:
    """Report an unusable storage of logins as ``CommandFailure``."""
    from parley.client.auth.storage import StorageUnusable

    try:
        yield
    except StorageUnusable as error:
        raise CommandFailure("A2ACLI_ERR_INTERNAL", f"{before}{error}", hint=hint) from None


async def _card_of(call: AgentCall, *, may_be_closed: bool) -> ResolvedCard | None:
    """Return the card of the agent; ``None`` for a card that requires a login."""
    from parley.cli.calls.agent_call import RETRY
    from parley.client.card.resolver import CardResolver
    from parley.client.errors import AuthenticationRequired

    async with call.http() as http:
        resolver = CardResolver(http, timeout=call.response_timeout, retry=RETRY)
        try:
            return await resolver.resolve(call.reference)
        except AuthenticationRequired:
            if may_be_closed:
                return None
            raise UsageFailure(
                f"the card of {without_user(call.address)} requires a login, "
                "so it cannot describe the login",
                hint="give --flow, and --issuer if there is one",
            ) from None


def _origin_of(call: AgentCall, resolved: ResolvedCard | None) -> Origin:
    """Return the origin for the login: the origin of the address that the user gave."""
    from parley.client.card.resolver import first_origin
    from parley.client.origin import Origin

    reference = call.address
    try:
        if "://" in reference and not reference.lower().startswith("file:"):
            return Origin.of(reference)
        if resolved is not None and resolved.url:
            return Origin.of(resolved.url)
        if resolved is None:
            return Origin.parse(reference.partition("/")[0])
    except ValueError as error:
        raise UsageFailure(
            f"{without_user(reference)!r} is not an address for a login: {error}"
        ) from None
    if (origin := first_origin(resolved.card)) is not None:
        return origin
    raise UsageFailure(f"the card of {resolved.card.name[:100]!r} names no address for a login")


def _no_way(resolved: ResolvedCard | None, flow: str) -> tuple[str]:
    if resolved is None or (resolved.card.security_schemes and flow):
        return (f"the card declares no scheme for --flow {flow}; give the --issuer",)
    if resolved.card.security_schemes:
        return (
            "the card requires a client certificate or a scheme without a login; certificates "
            "are given with --client-cert",
        )
    return (
        f"the card of {resolved.card.name[:100]!r} declares no security, so no login is "
        "needed. If it requires credentials anyway, choose them with --flow",
    )


def _client_secret(flow: str, client_id: str) -> str:
    secret = os.environ.get(CLIENT_SECRET, "")
    if flow != "client-credentials":
        return secret if client_id else ""
    if not client_id:
        raise UsageFailure("client-credentials needs --client-id")
    return secret or _ask(f"Secret of {client_id}: ", is_secret=True)


def _ask(prompt: str, *, is_secret: bool = False) -> str:
    """Read a text from the terminal or from standard input. Raises ``UsageFailure``."""
    is_terminal = sys.stdin.isatty()
    if is_terminal and is_secret:
        given = getpass.getpass(prompt)
    else:
        if is_terminal:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        given = sys.stdin.readline().strip()
    if not given:
        where = "" if is_terminal and is_secret else ", on the terminal or in stdin"
        raise UsageFailure(f"{prompt.rstrip(': ')} was not given{where}")
    return given


def _open(output: Output, url: str) -> bool:
    import webbrowser

    output.note(f"logging in with the browser; if none opens, go to {url}")
    webbrowser.open(url)
    return True


def _keep(output: Output, kept: KeptLogin) -> None:
    from parley.client.auth.logins import Logins

    logins = Logins()
    with _storage(
        "the login succeeded, but it cannot be saved:  ",
        "PARLEY_AUTH_STORAGE and PARLEY_AUTH_FOLDER choose the storage of logins",
    ):
        logins.put(kept)
        place = logins.place
    output.report({**_described(kept), "keptIn": place}, *_fields(kept), ("Kept in", place))


def _is_file(reference: str) -> bool:
    return reference.lower().startswith("file:") or Path(reference).is_file()


def _described(kept: KeptLogin) -> dict[str, Any]:
    """Return a login without its secrets."""
    return {
        "origin": kept.origin,
        "kind": kept.kind,
        "issuer": kept.issuer or None,
        "clientId": kept.client_id or None,
        "user": kept.user or None,
        "scopes": list(kept.scopes),
        "expiresAt": _time(kept.expires_at),
        "renews": bool(kept.refresh_token) or kept.kind == "client",
    }


def _fields(kept: KeptLogin) -> list[tuple[str, str]]:
    words = {"token": "token", "client": "client", "api_key": "API key", "basic": "password"}
    renews = kept.refresh_token or kept.kind == "client"
    until = _time(kept.expires_at)
    fields = {
        "Agent": kept.origin,
        "With": words.get(kept.kind, "bearer token"),
        "Issuer": kept.issuer or kept.token_url,
        "Client": kept.client_id,
        "User": kept.user,
        "Scopes": " ".join(kept.scopes),
        "Until": until and until + (", then renewed" if renews else ""),
    }
    return [(label, value) for label, value in fields.items() if value]


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
