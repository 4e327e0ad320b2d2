"""``parley complete``: completes an event that tasks wait for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from parley.cli.commands.store import EXITS, PASSWORDS, store_option, with_admin
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.store.admin.admin import StoreAdmin

EXAMPLES = """\b
Examples:
  parley complete payment:42 '{"paid": true}' --store sqlite:///parley.db
  parley complete approved                  the value is null
  curl ... | parley complete build:7 -      the value is what standard input says"""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @settings_command(
        app, "complete", "output", "debug", epilog=f"{EXAMPLES}\n\n{EXITS}\n\n{PASSWORDS}"
    )
    def complete(
        settings: CommandSettings,
        output: Output,
        key: str = typer.Argument(metavar="KEY", help="The event.", show_default=False),
        value: str = typer.Argument(
            "null", metavar="[VALUE]", help="Its value as JSON, or - for standard input."
        ),
        agent: str = typer.Option(
            "",
            "--agent",
            metavar="KEY",
            help="The agent, by its key.  [default: the only one in the store]",
            show_default=False,
        ),
        store: str = store_option(),
    ) -> None:
        """Complete an event of an agent: tasks that wait for it go on with the value.

        Works while a server uses the store, and while none does. An event is completed
        once: the same value again changes nothing, another one is an error.
        """
        data = _value(value)
        with_admin(store, lambda admin: _complete(output, admin, agent, key, data))


def _value(text: str) -> bytes:
    """Return a value as a store keeps it. Raises ``UsageFailure``."""
    from parley.store.protocols.tables import event_value

    try:
        value: Any = msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text)
        return event_value(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageFailure(
            f"the value is no JSON: {error}", hint="""quote text twice: '"like this"'"""
        ) from None
    except (ValueError, UnicodeError) as error:
        raise UsageFailure(str(error)) from None


def _complete(output: Output, admin: StoreAdmin, agent: str, key: str, value: bytes) -> None:
    from parley.cli.store.acts import act, record_act, require_agent, require_current
    from parley.store.protocols.tables import EventCompleted, check_key

    try:
        check_key(key)
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    require_current(admin)
    if agent:
        require_agent(admin, agent)
    else:
        agents = admin.agents()
        if len(agents) != 1:
            known = ", ".join(agents) or "none yet"
            raise UsageFailure(f"say which agent with --agent; the store knows {known}")
        agent = agents[0]
    try:
        is_new = admin.complete_event(agent, key, value)
    except EventCompleted as error:
        raise CommandFailure("PARLEY_ERR_COMPLETED", str(error)) from None
    if is_new:
        record_act(admin, act("event.completed", subject=key, agent=agent))
    if output.is_json:
        output.document({"store": admin.name, "agent": agent, "event": key, "completed": is_new})
        return
    output.text.field("Store", admin.name)
    output.text.field("Agent", agent)
    output.text.field("Event", f"{key} is complete" + ("" if is_new else ", as it was before"))
