"""``parley send``: starts or continues an interaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from parley.cli.command import Commands
from parley.cli.output.failures import UsageFailure
from parley.cli.settings.options import (
    CALL_OPTIONS,
    EXIT_HELP,
    SECRETS_HELP,
    SOURCES_HELP,
    Argument,
    CommandOption,
    part_flags,
)
from parley.model.operations import SKILL_KEY

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall

EXAMPLES = """\b
Examples:
  parley send "What time is it in Tokyo?"
  parley send agents.example.com --stream "Write a report about tides"
  parley send --skill fare '{"from": "BER", "to": "LIS"}'
  parley send --text "What is in it?" --file photo.jpg
  parley send "Make thumbnails" --file film.mp4 --save out
  parley send --file scan.bin --media-type application/pdf --data order.json
  parley send --task-id 0193... "Make it Tuesday"         answer a question
  parley send -o json --async "Go ahead" | jq -r .task.id"""

COMMANDS = Commands()

Save = Annotated[
    Path | None,
    CommandOption(
        "Save the files of the answer in this folder; it is created if needed.",
        "DIR",
        "Output",
        kind=Path,
    ),
]
"""The option to save files; files may be large, so no setting enables it."""


class Send(msgspec.Struct, frozen=True):
    """The options of ``parley send``."""

    message: Annotated[str, Argument("The text of the message.", "[MESSAGE]")] = ""
    save: Save = None
    text: Annotated[tuple[str, ...], CommandOption("A text part.", "TEXT", "Message")] = ()
    file: Annotated[
        tuple[str, ...],
        CommandOption(
            "A file part: a local file, uploaded if it is large, or a URL for the agent to fetch.",
            "PATH|URL",
            "Message",
        ),
    ] = ()
    data: Annotated[
        tuple[str, ...],
        CommandOption("A data part: a JSON file, or - for standard input.", "PATH|-", "Message"),
    ] = ()
    media_type: Annotated[
        tuple[str, ...],
        CommandOption(
            "The media type of the part before it; guessed from the name if left out.",
            "TYPE",
            "Message",
        ),
    ] = ()


@COMMANDS.add(
    "send",
    "context_id",
    "task_id",
    "skill",
    "metadata",
    "history",
    *CALL_OPTIONS,
    "async",
    "wait",
    "poll_interval",
    epilog="\n\n".join((EXAMPLES, EXIT_HELP, SOURCES_HELP, SECRETS_HELP)),
)
async def send(call: AgentCall, context: typer.Context, options: Send) -> None:
    """Send a message to start or continue an interaction.

    Waits until the task ends or asks for something, then prints the result: the agent's message, or
    the task with its artifacts. MESSAGE and the part flags are sent as the parts of one message,
    MESSAGE first, the others in the order of the flags. Of two arguments the first is the agent.
    """
    from parley.cli.calls.follow import Report, note_before, send_and_follow, send_and_wait
    from parley.cli.calls.messages import build_message, save_files, upload_files

    settings, report, save = call.settings, Report(call), options.save
    if settings.stream and settings.async_ and settings.is_flag("async"):
        raise UsageFailure("--stream and --async contradict each other; give one of them")
    if save is not None and settings.async_:
        raise UsageFailure(
            "--save and --async contradict each other: no files exist yet when --async returns",
            hint="save it later: parley task get --wait --save DIR TASK_ID",
        )
    skill = settings.skill
    if skill and (settings.metadata or {}).get(SKILL_KEY, skill) != skill:
        raise UsageFailure("--skill and --metadata name different skills; give one of them")
    built = build_message(
        part_flags(context),
        text=options.message,
        context_id=settings.context_id,
        task_id=settings.task_id,
    )
    async with call.agent() as agent:
        message = await upload_files(call, agent, built)
        report.sent(message)
        if settings.stream:
            answer = await send_and_follow(call, agent, message, report.event)
            await save_files(call, agent, answer, save)
            report.next_step(answer)
            return
        if settings.async_:
            await note_before(call, agent, message)
            sent = await agent.send(
                message,
                skill=settings.skill,
                metadata=settings.metadata,
                history_length=settings.history,
                return_immediately=True,
            )
            answer = sent.reply
        else:
            answer = await send_and_wait(call, agent, message)
            await save_files(call, agent, answer, save)
        report.answer(answer)
