"""``parley auth``: log in to an agent once, for all later commands and programs; see; log out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.redaction import Redactor, without_user
from parley.cli.output.streams import Output
from parley.cli.settings.options import EXIT_HELP, SOURCES_HELP, settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.client.auth.logins import KeptLogin, SignIn
    from parley.client.card.resolver import ResolvedCard
    from parley.client.origin import Origin

EXAMPLES = """\b
Examples:
  parley auth login https://bank.example.com          with what its card says
  parley auth login https://bank.example.com --scope pay
  parley auth login https://bank.example.com --flow client-credentials \\
    --client-id nightly-report                        with PARLEY_CLIENT_SECRET set
  parley auth status
  parley auth logout https://bank.example.com"""
KEPT = """\b
A login is for one origin (scheme, host and port), and is sent nowhere else. It is kept
in the system's keyring; without one, in a file that only you can read.
PARLEY_AUTH_STORAGE=file or =keyring chooses."""
SECRETS = """\b
Secrets are asked for on the terminal, or read from standard input; those of a client
come from PARLEY_CLIENT_SECRET, a key from A2ACLI_API_KEY, a token from A2ACLI_BEARER."""
CLIENT_SECRET = "PARLEY_CLIENT_SECRET"
OPTIONS = (
    "agent_card",
    "insecure",
    "ca_file",
    "client_cert",
    "client_key",
    "proxy",
    "timeout",
    "output",
    "verbose",
    "debug",
    "config",
)
AGENT = typer.Argument("", metavar="[URL]", help="The agent, as for -a.", show_default=False)
PANEL = "Login"
SCOPE = typer.Option(
    None,
    "--scope",
    metavar="SCOPE",
    help="A scope to ask for beside those of the card; repeatable.",
    rich_help_panel=PANEL,
    show_default=False,
)


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(
        "", flag, metavar=metavar, help=text, rich_help_panel=PANEL, show_default=False
    )


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="auth", help="Log in to agents, see your logins, log out.")
    epilog = f"{EXAMPLES}\n\n{KEPT}\n\n{SECRETS}\n\n{EXIT_HELP}\n\n{SOURCES_HELP}"

    @settings_command(group, "login", *OPTIONS, "bearer", "api_key", epilog=epilog)
    def login(
        settings: CommandSettings,
        output: Output,
        url: str = AGENT,
        flow: str = _option(
            "--flow",
            "FLOW",
            "authorization-code (with a browser), device-code, client-credentials, api-key, basic "
            "or bearer.  [default: what the card says]",
        ),
        client_id: str = _option(
            "--client-id", "ID", "The client to log in as.  [default: one is registered]"
        ),
        scope: list[str] = SCOPE,
        issuer: str = _option("--issuer", "URL", "The issuer, in place of what the card says."),
        audience: str = _option("--audience", "TEXT", "What the token is for, if it must be said."),
        resource: str = _option("--resource", "URL", "The same, as a resource (RFC 8707)."),
        user: str = _option("--user", "NAME", "The user of HTTP Basic; asked for if left out."),
    ) -> int:
        """Log in to an agent as its card says, and keep the login for later calls.

        A token that expires is renewed without asking. Programs of yours that connect to
        the same origin use the login too.
        """
        from parley.cli.calls.agent_call import AgentCall
        from parley.client.auth.logins import FLOWS, SignIn, scopes_of

        if flow and flow not in FLOWS:
            raise UsageFailure(f"--flow: {flow!r} is none of {', '.join(FLOWS)}")
        wish = SignIn(
            flow=flow,
            scopes=scopes_of(scope or ()),
            client_id=client_id,
            issuer=issuer,
            audience=audience,
            resource=resource,
        )
        call = AgentCall(_of_agent(settings, url), output)
        return call.run(lambda: _login(call, wish, user))

    @settings_command(group, "status", "output", "verbose", "debug", "config", epilog=KEPT)
    def status(settings: CommandSettings, output: Output) -> None:
        """Show your logins: for which agents, from which issuers, until when."""
        _status(output)

    @settings_command(group, "logout", *OPTIONS, epilog=KEPT)
    def logout(
        settings: CommandSettings,
        output: Output,
        url: str = AGENT,
        everything: bool = typer.Option(
            False, "--all", help="Log out of all agents.", show_default=False, rich_help_panel=PANEL
        ),
    ) -> int:
        """Forget a login, and have its issuer revoke the tokens where it can."""
        from parley.cli.calls.agent_call import AgentCall

        call = AgentCall(_of_agent(settings, url), output)
        return call.run(lambda: _logout(call, everything))


def _of_agent(settings: CommandSettings, url: str) -> CommandSettings:
    import msgspec

    if not url:
        return settings
    if settings.is_flag("agent_card"):
        raise UsageFailure("the agent is named twice; give the URL or -a")
    sources = {**settings.sources, "agent_card": "flag"}
    return msgspec.structs.replace(settings, agent_card=url, sources=sources)


async def _login(call: AgentCall, wish: SignIn, user: str) -> None:
    import msgspec

    from parley.client.auth import logins as signing

    settings, output = call.settings, call.output
    if not call.uses_logins:
        raise UsageFailure(
            f"{settings.protection_file}, which was found and not named, decides how connections "
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
    address = without_user(settings.agent_card)
    if flow in (signing.API_KEY, signing.BASIC, signing.BEARER):
        signing.check_encrypted(origin, settings.insecure)
        if flow == signing.BASIC and not user:
            user = _ask("User: ")
        known = {signing.API_KEY: settings.api_key, signing.BEARER: settings.bearer}
        words = {signing.API_KEY: "API key: ", signing.BEARER: "Bearer token: "}
        secret = known.get(flow) or _ask_secret(words.get(flow, "Password: "))
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


FLOWS_OF_ISSUERS = ("authorization-code", "device-code", "client-credentials")


async def _card_of(call: AgentCall, *, may_be_closed: bool) -> ResolvedCard | None:
    """Return the card of the agent; ``None`` for one that is shown only to those logged in."""
    from parley.cli.calls.agent_call import RETRY
    from parley.client.card.resolver import CardResolver
    from parley.client.errors import AuthenticationRequired

    async with call.http() as http:
        resolver = CardResolver(http, timeout=call.response_timeout, retry=RETRY)
        try:
            return await resolver.resolve(call.settings.agent_card)
        except AuthenticationRequired:
            if may_be_closed:
                return None
            raise UsageFailure(
                f"the card of {without_user(call.settings.agent_card)} is shown only to those who "
                "have logged in, so it cannot say how",
                hint="say it with --flow, and --issuer where there is one",
            ) from None


def _origin_of(call: AgentCall, resolved: ResolvedCard | None) -> Origin:
    """Return the origin to log in to: that of the address that the user gave."""
    from parley.client.origin import Origin

    reference = call.settings.agent_card
    try:
        if "://" in reference and not reference.lower().startswith("file:"):
            return Origin.of(reference)
        if resolved is not None and resolved.url:
            return Origin.of(resolved.url)
        if resolved is None:
            return Origin.parse(reference.partition("/")[0])
    except ValueError as error:
        raise UsageFailure(
            f"{without_user(reference)!r} is no address to log in to: {error}"
        ) from None
    raise UsageFailure(
        "a card file is no agent to log in to; give the agent's address, such as "
        "https://agents.example.com"
    )


def _no_way(resolved: ResolvedCard | None, flow: str) -> tuple[str]:
    if resolved is None or (resolved.card.security_schemes and flow):
        return (f"the card declares nothing that --flow {flow} logs in to; name the --issuer",)
    if resolved.card.security_schemes:
        return (
            "the card wants a client certificate or a scheme that nobody logs in to; certificates "
            "are given with --client-cert",
        )
    return (
        f"the card of {resolved.card.name[:100]!r} declares no security: there is nothing to log "
        "in to. If it wants credentials all the same, say which with --flow",
    )


def _client_secret(flow: str, client_id: str) -> str:
    import os

    secret = os.environ.get(CLIENT_SECRET, "")
    if flow != "client-credentials":
        return secret if client_id else ""
    if not client_id:
        raise UsageFailure("client-credentials logs a client in; name it with --client-id")
    return secret or _ask_secret(f"Secret of {client_id}: ")


def _ask(prompt: str) -> str:
    import sys

    if sys.stdin.isatty():
        sys.stderr.write(prompt)
        sys.stderr.flush()
    line = sys.stdin.readline().strip()
    if not line:
        raise UsageFailure(f"{prompt.rstrip(': ')} was not given, on the terminal or in stdin")
    return line


def _ask_secret(prompt: str) -> str:
    import getpass
    import sys

    if not sys.stdin.isatty():
        return _ask(prompt)
    secret = getpass.getpass(prompt)
    if not secret:
        raise UsageFailure(f"{prompt.rstrip(': ')} was not given")
    return secret


def _open(output: Output, url: str) -> bool:
    import webbrowser

    output.note(f"logging in with the browser; if none opens, go to {url}")
    webbrowser.open(url)
    return True


def _keep(output: Output, kept: KeptLogin) -> None:
    from parley.client.auth.logins import Logins
    from parley.client.auth.storage import StorageUnusable

    logins = Logins()
    try:
        logins.put(kept)
        place = logins.place
    except StorageUnusable as error:
        raise CommandFailure(
            "A2ACLI_ERR_INTERNAL",
            f"the login succeeded, but it cannot be kept: {error}",
            hint="PARLEY_AUTH_STORAGE and PARLEY_AUTH_FOLDER say where logins are kept",
        ) from None
    if output.is_json:
        output.document({**_described(kept), "keptIn": place})
        return
    _show(output, kept)
    output.text.field("Kept in", place)


def _status(output: Output) -> None:
    from parley.client.auth.logins import Logins
    from parley.client.auth.storage import StorageUnusable

    logins = Logins()
    try:
        found, place = logins.all(), logins.place
    except StorageUnusable as error:
        raise CommandFailure("A2ACLI_ERR_INTERNAL", str(error)) from None
    if output.is_json:
        output.document({"logins": [_described(each) for each in found], "keptIn": place})
        return
    for each in found:
        _show(output, each)
    output.text.field("Logins", str(len(found)))
    output.text.field("Kept in", place)


async def _logout(call: AgentCall, everything: bool) -> None:
    from parley.client.auth.logins import Logins, sign_out
    from parley.client.auth.storage import StorageUnusable
    from parley.client.origin import Origin

    output, logins = call.output, Logins()
    try:
        if everything:
            found = logins.all()
        else:
            reference = call.settings.agent_card
            try:
                text = reference if "://" in reference else reference.partition("/")[0]
                origin = Origin.of(text) if "://" in text else Origin.parse(text)
            except ValueError as error:
                raise UsageFailure(f"{without_user(reference)!r}: {error}") from None
            kept = logins.find(origin)
            found = [] if kept is None else [kept]
            if kept is None:
                raise CommandFailure(
                    "A2ACLI_ERR_CREDENTIALS_MISSING",
                    f"there is no login for {origin}",
                    hint="parley auth status lists your logins",
                )
        revoked = []
        async with call.http() as http:
            for each in found:
                logins.remove(Origin.parse(each.origin))
                if await sign_out(each, http):
                    revoked.append(each.origin)
    except StorageUnusable as error:
        raise CommandFailure("A2ACLI_ERR_INTERNAL", str(error)) from None
    if output.is_json:
        output.document({"loggedOut": [each.origin for each in found], "revoked": revoked})
        return
    for each in found:
        said = "" if each.origin in revoked else " (its issuer was not told)"
        output.text.field("Logged out", each.origin + ("" if not each.access_token else said))


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


def _show(output: Output, kept: KeptLogin) -> None:
    words = {"token": "token", "client": "client", "api_key": "API key", "basic": "password"}
    output.text.field("Agent", kept.origin)
    output.text.field("With", words.get(kept.kind, "bearer token"))
    if kept.issuer or kept.token_url:
        output.text.field("Issuer", kept.issuer or kept.token_url)
    if kept.client_id:
        output.text.field("Client", kept.client_id)
    if kept.user:
        output.text.field("User", kept.user)
    if kept.scopes:
        output.text.field("Scopes", " ".join(kept.scopes))
    if kept.expires_at is not None:
        renews = kept.refresh_token or kept.kind == "client"
        until = _time(kept.expires_at) or ""
        output.text.field("Until", until + (", then renewed" if renews else ""))


def _time(seconds: float | None) -> str | None:
    from datetime import UTC, datetime

    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
