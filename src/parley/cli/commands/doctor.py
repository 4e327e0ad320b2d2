"""``parley doctor``: looks for problems of this machine, and names their remedies."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.output.streams import Output
from parley.cli.settings.options import AGENT_OPTIONS, CommandOption
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import InStore

EXITS = """\b
Exit status:
  0  there is no problem
  1  there is a problem"""

COMMANDS = Commands()


class Doctor(InStore, frozen=True):
    """The options of ``parley doctor``."""

    port: Annotated[int, CommandOption("The port that a server is to have.", "PORT")] = 9999


@COMMANDS.add("doctor", *AGENT_OPTIONS, "output", "debug", "config", epilog=EXITS)
def doctor(settings: CommandSettings, output: Output, options: Doctor) -> int:
    """Look for problems of Python, extras, port, store, keys, clock, egress and variables.

    An agent may be named: its address, or its file or module. Changes nothing.
    """
    from parley.cli import doctor as checks
    from parley.cli.calls.agent_call import AgentCall
    from parley.cli.loading import is_code

    findings = [*checks.python(), *checks.packages(), *checks.variables(os.environ)]
    findings += [*checks.terminal(), *checks.port(options.port), *checks.store(options.store)]
    findings += [*checks.keys(), *checks.egress()]
    if is_code(settings.agent_card):
        findings += checks.local_agent(settings.agent_card)
    elif settings.is_flag("agent_card"):
        findings += checks.remote_agent(AgentCall(settings, output))
    if output.is_json:
        output.json(msgspec.json.encode({"findings": findings}))
    for each in () if output.is_json else findings:
        state = "" if each.state == "ok" else f"{each.state}: "
        remedy = f"; {each.remedy}" if each.remedy else ""
        output.text.field(each.subject.capitalize(), f"{state}{each.text}{remedy}")
    return int(any(each.state == "problem" for each in findings))
