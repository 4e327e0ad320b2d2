"""``parley chat``: a conversation with an agent in the terminal."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast

import msgspec

from parley.cli.command import Commands
from parley.cli.output.streams import Output, draws
from parley.cli.settings.options import AGENT_OPTIONS, EXIT_HELP, SOURCES_HELP, CommandOption
from parley.cli.settings.table import CommandSettings

EXAMPLES = """\b
Examples:
  parley chat                              the server on this machine
  parley chat https://agents.example.com
  parley chat agent.py                     an agent's file, without a server
  parley chat --task-id 0193...            continue a task"""
WIDTH = 100

COMMANDS = Commands()


class Chat(msgspec.Struct, frozen=True):
    """The options of ``parley chat``."""

    no_history: Annotated[
        bool, CommandOption("Neither read nor keep the history of typed messages.")
    ] = False


@COMMANDS.add(
    "chat",
    "context_id", "task_id", "skill", *AGENT_OPTIONS, "registry", "extension", "debug", "config",
    epilog="\n\n".join((EXAMPLES, EXIT_HELP, SOURCES_HELP)),
)  # fmt: skip
def chat(settings: CommandSettings, output: Output, options: Chat) -> int:
    """Talk with an agent.

    Answers appear as they come. Questions are prompts, files come with a number, and a lost
    connection is resumed; /help shows the commands. Without a terminal every line of standard
    input is a message, and the output is plain.
    """
    from parley.cli.calls.agent_call import AgentCall
    from parley.cli.chat.conversation import ChatSession
    from parley.cli.chat.terminal import Terminal, history_file
    from parley.cli.commands.auth import LoginOptions, login
    from parley.cli.loading import is_code, load
    from parley.cli.output.answer import PlainAnswer

    call = AgentCall(msgspec.structs.replace(settings, timeout=None, stream=True), output)
    if is_code(settings.agent_card):
        (agent,) = load([settings.agent_card]).values()
        call.reference = cast("Any", agent)

    with Terminal(None if options.no_history else history_file()) as terminal:
        view: Any = PlainAnswer
        if terminal.is_terminal and draws():
            from parley.cli.output.rich_answer import RichAnswer, TextConsole

            view = partial(RichAnswer, TextConsole(WIDTH))
        login_by_card = partial(login, options=LoginOptions())
        return call.run(ChatSession(call, terminal, view, login_by_card).run)
