"""``parley send``: start or continue an interaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from parley.cli.messages import build_message
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    CALL_OPTIONS,
    EXIT_HELP,
    SAVE,
    SECRETS_HELP,
    SOURCES_HELP,
    part_flags,
    settings_command,
)
from parley.cli.settings.table import CommandSettings
from parley.model.operations import SKILL_KEY

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.cli.messages import Draft

EXAMPLES = """\b
Examples:
  parley send "What time is it in Tokyo?"
  parley send -a agents.example.com --stream "Write a report about tides"
  parley send --skill fare '{"from": "BER", "to": "LIS"}'
  parley send --text "What is in it?" --file photo.jpg
  parley send "Make thumbnails" --file film.mp4 --save out
  parley send --file scan.bin --media-type application/pdf --data order.json
  parley send --task-id 0193... "Make it Tuesday"         answer a question
  parley send -o json --async "Go ahead" | jq -r .task.id"""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @settings_command(
        app,
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
        parts=True,
        epilog="\n\n".join((EXAMPLES, EXIT_HELP, SOURCES_HELP, SECRETS_HELP)),
    )
    def send(
        settings: CommandSettings,
        output: Output,
        context: typer.Context,
        message: str = typer.Argument(
            "", metavar="MESSAGE", help="The text of the message.", show_default=False
        ),
        save: Path = SAVE,
    ) -> int:
        """Send a message to start or continue an interaction.

        Waits until the task ends or asks for something, then prints what came of it:
        the agent's message, or the task with its artifacts. MESSAGE and the part
        flags are sent as the parts of one message, MESSAGE first, the others in the
        order in which they are written.
        """
        if settings.stream and settings.async_ and settings.is_flag("async"):
            raise UsageFailure("--stream and --async contradict each other; give one of them")
        if save is not None and settings.async_:
            raise UsageFailure(
                "--save and --async contradict each other: there is nothing to save at once",
                hint="save it later: parley task get --wait --save DIR TASK_ID",
            )
        skill = settings.skill
        if skill and (settings.metadata or {}).get(SKILL_KEY, skill) != skill:
            raise UsageFailure("--skill and --metadata name different skills; give one of them")
        built = build_message(
            part_flags(context),
            text=message,
            context_id=settings.context_id,
            task_id=settings.task_id,
        )

        from parley.cli.calls.agent_call import AgentCall

        call = AgentCall(settings, output)
        return call.run(lambda: _send(call, built, save))


async def _send(call: AgentCall, draft: Draft, save: Path | None) -> None:
    from parley.cli.calls.files import save_files, upload_files
    from parley.cli.calls.follow import Report, note_before, send_and_follow, send_and_wait

    settings, report = call.settings, Report(call)
    async with call.agent() as agent:
        message = await upload_files(call, agent, draft)
        report.sent(message)
        if settings.stream:
            answer = await send_and_follow(call, agent, message, report.event)
            await save_files(call, agent, answer, save)
            report.next_step(answer)
            return
        if settings.async_:
            await note_before(call, agent, message)
            answer = await agent.send(
                message,
                skill=settings.skill,
                metadata=settings.metadata,
                history_length=settings.history,
                return_immediately=True,
            )
        else:
            answer = await send_and_wait(call, agent, message)
            await save_files(call, agent, answer, save)
        report.answer(answer)
