"""``parley config show``: the effective settings, each with its source."""

from __future__ import annotations

import typer

from parley.cli.output.streams import Output
from parley.cli.settings import dotenv
from parley.cli.settings.options import SOURCES_HELP, display_value, load_sources, settings_command
from parley.cli.settings.table import BY_FIELD, SETTINGS, CommandSettings


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="config", help="Look at the configuration.")

    @settings_command(group, "show", *ALL, epilog=SOURCES_HELP)
    def show(settings: CommandSettings, output: Output) -> None:
        """Show every setting in force, and the source that it comes from.

        First those of commands that call, then those of parley serve, which the environment has
        alone. Nothing is ever written: set variables, or edit the .env files, to change them.
        Credentials are only said to be set.
        """
        from parley.cli.settings.server import server_settings

        rows = [
            (setting, display_value(setting, settings) or setting.default_text)
            for setting in SETTINGS
        ]
        sources = settings.sources
        if settings.is_json:
            output.document(
                {
                    "settings": [
                        {"name": s.name, "value": value, "source": sources[s.field]}
                        for s, value in rows
                    ],
                    "server": [
                        {"name": name, "value": value, "source": source}
                        for name, value, source in server_settings()
                    ],
                    "files": [str(path) for path in _files(settings)],
                }
            )
            return
        for setting, value in rows:
            output.text.field(setting.name, f"{value or 'none'} ({sources[setting.field]})")
        for path in _files(settings):
            output.text.field("File", path)
        for name, value, source in server_settings():
            output.text.field(f"serve {name}", f"{value or 'none'} ({source})")
        if settings.credential_redirect is not None:
            output.warn(f"{settings.credential_redirect}; {settings.credential_redirect.remedy}")
        for name in _unknown(settings):
            output.warn(f"{name} is set, but there is no such setting")


ALL = tuple(BY_FIELD)


def _files(settings: CommandSettings) -> list[str]:
    return [str(source.path) for source in load_sources(settings.config) if source.path]


def _unknown(settings: CommandSettings) -> list[str]:
    known = {setting.variable for setting in SETTINGS if not setting.local}
    given = {name for source in load_sources(settings.config) for name in source.values}
    return sorted(name for name in given if name.startswith(dotenv.PREFIX) and name not in known)
