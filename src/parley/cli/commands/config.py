"""``parley config``: the effective settings, each with its source, and the check of all sources."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import FAILED
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    LOCAL_OPTIONS,
    SOURCES_HELP,
    Argument,
    display_value,
    load_sources,
)
from parley.cli.settings.server import found_file, unknown_variables
from parley.cli.settings.table import BY_FIELD, DEFAULT, PREFIX, SETTINGS, CommandSettings

COMMANDS = Commands("config", "Show and check the configuration.")


@COMMANDS.add("show", *BY_FIELD, epilog=SOURCES_HELP)
def show(settings: CommandSettings, output: Output) -> None:
    """Show every effective setting with its source.

    Settings of client commands come first, then settings of parley serve, from the environment and
    parley.toml (or the file in PARLEY_CONFIG). Nothing is ever written. Credentials are never
    shown, only whether they are set.
    """
    from parley.host.configuration import SETTINGS as SERVER
    from parley.host.configuration import Configuration

    found, sources = load_sources(settings.config), settings.sources
    served = Configuration({}, found_file())
    files = [str(source.path) for source in found if source.path]
    files += [str(served.file)] if served.file else []
    rows = [
        (each.name, display_value(each, settings) or each.default_text, sources[each.field])
        for each in SETTINGS
    ]
    server = [(name, served.shown(name), served.sources.get(name, DEFAULT)) for name in SERVER]
    names = ("name", "value", "source")
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
    for text in (*served.problems, *served.warnings):
        output.warn(text)


class Check(msgspec.Struct, frozen=True):
    """The arguments of ``parley config check``."""

    file: Annotated[
        str, Argument("The file; parley.toml, or the file in PARLEY_CONFIG, if left out.", "[FILE]")
    ] = ""


@COMMANDS.add("check", *LOCAL_OPTIONS)
def check(settings: CommandSettings, output: Output, own: Check) -> int:
    """Check the settings of parley serve in parley.toml and in the environment.

    Every problem is listed with its file and line, or its variable: unknown names, impossible
    values, values that contradict each other. Exits with 1 if there is one. Variables with an
    unknown name are warnings.
    """
    from parley.host.configuration import Configuration

    served = Configuration({}, own.file or found_file())
    warnings = list(served.warnings)
    for name, near in unknown_variables(os.environ).items():
        hint = f"; the nearest is {near}" if near else ""
        warnings.append(f"{name} is set, and nothing reads it{hint}")
    count = len(served.sources)
    said = f"{count} setting{'' if count == 1 else 's'}, no problem" if not served.problems else ""
    where = str(served.file or "environment")
    output.report(
        {
            "file": str(served.file) if served.file else None,
            "settings": served.sources,
            "problems": served.problems,
            "warnings": warnings,
        },
        *[("Problem", text) for text in served.problems],
        *([(where, said)] if said else ()),
    )
    if not output.is_json:
        for text in warnings:
            output.warn(text)
    return FAILED if served.problems else 0
