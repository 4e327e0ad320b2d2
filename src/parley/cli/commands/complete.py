"""``parley complete``: completes an event that tasks wait for."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec

from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output
from parley.cli.settings.options import Argument, CommandOption
from parley.cli.store.acts import InStore, StoreCommands, act, record_act, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.protocols.tables import EventCompleted, check_key, event_value

EXAMPLES = """\b
Examples:
  parley complete payment:42 '{"paid": true}' --store sqlite:///parley.db
  parley complete approved                  the value is null
  curl ... | parley complete build:7 -      the value is what standard input says"""


COMMANDS = StoreCommands()


class Complete(InStore, frozen=True, kw_only=True):
    """The options of ``parley complete``."""

    key: Annotated[str, Argument("The event.", "KEY")]
    value: Annotated[str, Argument("Its value as JSON, or - for standard input.", "[VALUE]")] = (
        "null"
    )
    agent: Annotated[
        str, CommandOption("The agent, by its key.", "KEY", default="the only one in the store")
    ] = ""


@COMMANDS.work("complete", EXAMPLES)
def complete(output: Output, admin: StoreAdmin, options: Complete) -> None:
    """Complete an event of an agent: tasks that wait for it go on with the value.

    Works while a server uses the store, and while none does. An event is completed
    once: the same value again changes nothing, another one is an error.
    """
    value = _value(options.value)
    key, agent = options.key, options.agent
    with wrong_usage():
        check_key(key)
    require_current(admin, agent)
    if not agent:
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
    output.report(
        {"store": admin.name, "agent": agent, "event": key, "completed": is_new},
        ("Store", admin.name),
        ("Agent", agent),
        ("Event", f"{key} is complete" + ("" if is_new else ", as it was before")),
    )


def _value(text: str) -> bytes:
    """Return a value as a store keeps it. Raises ``UsageFailure``."""
    try:
        value: Any = msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text)
        return event_value(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageFailure(
            f"the value is no JSON: {error}", hint="""quote text twice: '"like this"'"""
        ) from None
    except (ValueError, UnicodeError) as error:
        raise UsageFailure(str(error)) from None
