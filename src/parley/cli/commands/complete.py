"""``parley complete``: completes an event that tasks await."""

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
  curl ... | parley complete build:7 -      the value is read from standard input"""


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
    """Complete an event of an agent: tasks that wait for it resume with the value.

    Works with and without a running server on the store. An event is completed once: the same value
    again changes nothing, a different value is an error.
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
            raise UsageFailure(f"choose an agent with --agent; the store has {known}")
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
        ("Event", f"{key} is complete" + ("" if is_new else ", as before")),
    )


def _value(text: str) -> bytes:
    """Return a value in its stored form. Raises ``UsageFailure``."""
    try:
        value: Any = msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text)
        return event_value(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageFailure(
            f"the value is not JSON: {error}", hint="""quote text twice: '"like this"'"""
        ) from None
    except (ValueError, UnicodeError) as error:
        raise UsageFailure(str(error)) from None
