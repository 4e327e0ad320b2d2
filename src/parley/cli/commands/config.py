"""``parley config show``: the effective settings, each with its source."""

from __future__ import annotations

from parley.cli.command import Commands
from parley.cli.output.streams import Output
from parley.cli.settings.options import SOURCES_HELP, display_value, load_sources
from parley.cli.settings.server import server_settings
from parley.cli.settings.table import BY_FIELD, PREFIX, SETTINGS, CommandSettings

COMMANDS = Commands("config", "Show the configuration.")


@COMMANDS.add("show", *BY_FIELD, epilog=SOURCES_HELP)
def show(settings: CommandSettings, output: Output) -> None:
    """Show every effective setting with its source.

    Settings of client commands come first, then settings of parley serve, which come from the
    environment only. Nothing is ever written: set variables, or edit the .env files, to change
    them. Credentials are never shown, only whether they are set.
    """
    found, sources = load_sources(settings.config), settings.sources
    files = [str(source.path) for source in found if source.path]
    rows = [
        (each.name, display_value(each, settings) or each.default_text, sources[each.field])
        for each in SETTINGS
    ]
    server, names = server_settings(), ("name", "value", "source")
    output.report(
        {
            "settings": [dict(zip(names, row, strict=True)) for row in rows],
            "server": [dict(zip(names, row, strict=True)) for row in server],
            "files": files,
        },
        *[(name, f"{value or 'none'} ({source})") for name, value, source in rows],
        *[("File", path) for path in files],
        *[(f"serve {name}", f"{value or 'none'} ({source})") for name, value, source in server],
    )
    if output.is_json:
        return
    if settings.credential_redirect is not None:
        output.warn(f"{settings.credential_redirect}; {settings.credential_redirect.remedy}")
    known = {setting.variable for setting in SETTINGS if not setting.local}
    given = {name for source in found for name in source.values if name.startswith(PREFIX)}
    for name in sorted(given - known):
        output.warn(f"{name} is set, but is not a known setting")
