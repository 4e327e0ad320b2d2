"""``parley task``: shows, waits for, follows and cancels tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from parley.cli.commands import push_config
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    CALL_OPTIONS,
    EXIT_HELP,
    SAVE,
    SOURCES_HELP,
    settings_command,
)
from parley.cli.settings.table import CommandSettings
from parley.model.tasks import TaskState

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall

EPILOG = f"{EXIT_HELP}\n\n{SOURCES_HELP}"
TASK = typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)
FOLDER = typer.Argument(
    Path(), metavar="[FOLDER]", file_okay=False, help="Where to save; it is created if needed."
)
TRUST = typer.Option(
    [],
    "--trust",
    metavar="ORIGIN",
    help="Where else the credential may go: the agent that asks, if another one passes that on.",
    show_default=False,
    rich_help_panel="Interaction",
)
REFUSE = typer.Option(
    False,
    "--refuse",
    help="Say no, and send no credential.",
    show_default=False,
    rich_help_panel="Interaction",
)


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="task", help="Look at tasks, wait for them, follow, cancel.")
    push_config.register(group)

    @settings_command(
        group, "get", "history", *CALL_OPTIONS, "wait", "poll_interval", epilog=EPILOG
    )
    def get(
        settings: CommandSettings, output: Output, task_id: str = TASK, save: Path = SAVE
    ) -> int:
        """Show a task: its state and its artifacts.

        Once, or with --wait again and again until it ends or asks for something.
        """
        call = push_config.call_for_task(settings, output, task_id)
        return call.run(lambda: _get(call, task_id, save))

    @settings_command(group, "list", "context_id", "history", *CALL_OPTIONS, epilog=EPILOG)
    def list_tasks(
        settings: CommandSettings,
        output: Output,
        state: str = typer.Option(
            "",
            "--state",
            "--status",
            metavar="STATE",
            help="Only tasks in this state, such as working or input-required.",
            show_default=False,
            rich_help_panel="Interaction",
        ),
        page_size: int = typer.Option(
            None,
            "--page-size",
            metavar="N",
            min=1,
            max=100,
            help="How many tasks to a page.  [default: as the agent sees fit]",
            show_default=False,
            rich_help_panel="Interaction",
        ),
        page_token: str = typer.Option(
            "",
            "--page-token",
            metavar="TOKEN",
            help="The page to show, as named by the page before it.",
            show_default=False,
            rich_help_panel="Interaction",
        ),
        artifacts: bool = typer.Option(
            False,
            "--artifacts",
            help="Show the tasks' artifacts too.",
            show_default=False,
            rich_help_panel="Interaction",
        ),
    ) -> int:
        """List your tasks, the last updated first, page by page."""
        wanted = parse_state(state)
        call = push_config.call_for_task(settings, output, "")
        return call.run(lambda: _list(call, wanted, page_size, page_token, artifacts))

    @settings_command(group, "download", *CALL_OPTIONS, epilog=EPILOG)
    def download(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        folder: Path = FOLDER,
        overwrite: bool = typer.Option(
            False,
            "--overwrite",
            help="Replace files of the same name, in place of saving under another one.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ) -> int:
        """Save the artifacts of a task in a folder, and print the paths of the files.

        Texts and data become files too, by the name of their artifact. Names are made safe.
        """
        call = push_config.call_for_task(settings, output, task_id)
        return call.run(lambda: _download(call, task_id, folder, overwrite=overwrite))

    @settings_command(group, "cancel", "metadata", *CALL_OPTIONS, epilog=EPILOG)
    def cancel(settings: CommandSettings, output: Output, task_id: str = TASK) -> int:
        """Cancel a task, and show the state that it is in then."""
        call = push_config.call_for_task(settings, output, task_id)
        return call.run(lambda: _cancel(call, task_id))

    @settings_command(group, "subscribe", "history", *CALL_OPTIONS, "poll_interval", epilog=EPILOG)
    def subscribe(settings: CommandSettings, output: Output, task_id: str = TASK) -> int:
        """Follow a task's events until it ends or asks for something.

        With --stream every event is shown as it comes; without, the task as it stands
        at the end. A stream that breaks is taken up again, or polled.
        """
        call = push_config.call_for_task(settings, output, task_id)
        return call.run(lambda: _subscribe(call, task_id))

    @settings_command(group, "authorize", *CALL_OPTIONS, epilog=EPILOG)
    def authorize(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        trust: list[str] = TRUST,
        refuse: bool = REFUSE,
    ) -> int:
        """Give a task that is AUTH_REQUIRED the credential that it asks for.

        The token, the API key, or the user and the password as USER:PASSWORD, are read
        from standard input, or asked for. They go to the callback of the task, once, and
        into no message. Where the user is to log in, the page to open is shown.
        """
        call = push_config.call_for_task(settings, output, task_id)
        return call.run(lambda: _authorize(call, task_id, trust, refuse=refuse))


def parse_state(text: str) -> TaskState:
    """Return the state named ``working``, ``INPUT_REQUIRED`` or ``TASK_STATE_FAILED``.

    Accepts both spellings of ``canceled``.
    """
    if not text:
        return TaskState.UNSPECIFIED
    name = text.upper().replace("-", "_").removeprefix("TASK_STATE_")
    try:
        return TaskState["CANCELED" if name == "CANCELLED" else name]
    except KeyError:
        known = ", ".join(state.name.lower().replace("_", "-") for state in TaskState)
        raise UsageFailure(f"--state: {text!r} is no state; there are {known}") from None


async def _get(call: AgentCall, task_id: str, save: Path | None) -> None:
    import asyncio

    from parley.cli.calls.files import save_files
    from parley.cli.calls.follow import Report, poll
    from parley.client.calls.stream_reader import is_settled

    async with call.agent() as agent:
        task = await agent.get(task_id, history_length=call.settings.history)
        if call.settings.wait and not is_settled(task.state):
            await asyncio.sleep(call.settings.poll_interval)
            task = await poll(call, agent, task_id)
        await save_files(call, agent, task, save)
        Report(call).task(task)


async def _download(call: AgentCall, task_id: str, folder: Path, *, overwrite: bool) -> None:
    from parley.cli.calls.files import save_artifacts

    async with call.agent() as agent:
        task = await agent.get(task_id, history_length=0)
        paths = await save_artifacts(call, agent, task, folder, overwrite=overwrite)
    if call.settings.is_json:
        call.output.document({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            call.output.text.field("File", str(path))


async def _list(
    call: AgentCall, state: TaskState, page_size: int | None, page_token: str, artifacts: bool
) -> None:
    from parley.cli.calls.follow import Report

    async with call.agent() as agent:
        page = await agent.list(
            context_id=call.settings.context_id or "",
            status=state,
            page_size=page_size,
            page_token=page_token,
            history_length=call.settings.history,
            include_artifacts=artifacts or None,
        )
        filters = ["--context-id", call.settings.context_id] if call.settings.context_id else []
        filters += ["--state", state.name.lower()] if state is not TaskState.UNSPECIFIED else []
        filters += ["--page-size", str(page_size)] if page_size else []
        filters += ["--artifacts"] if artifacts else []
        Report(call).page(page, filters)


async def _cancel(call: AgentCall, task_id: str) -> None:
    from parley.cli.calls.follow import Report

    async with call.agent() as agent:
        task = await agent.cancel(task_id, metadata=call.settings.metadata)
        Report(call).task(task)


async def _authorize(call: AgentCall, task_id: str, trust: Sequence[str], *, refuse: bool) -> None:
    from parley.cli.calls.follow import credential_for, describe
    from parley.extensions.questions import auth_request

    async with call.agent() as agent:
        task = await agent.get(task_id, history_length=0)
        request = auth_request(task)
        if request is None:
            raise UsageFailure(
                f"task {task_id} asks for no credential: it is {task.state.value}",
                hint=f"look at it with: {call.command('task get')}",
            )
        describe(call, request)
        if not request.callback:
            return
        given = {"error": "access_denied"} if refuse else await credential_for(request)
        await agent.authorize(task, given, trust=trust)
        call.output.note(f"taken; wait for the task with: {call.command('task get --wait')}")


async def _subscribe(call: AgentCall, task_id: str) -> None:
    from parley.cli.calls.follow import Report, follow, ignore
    from parley.model.operations import BY_NAME
    from parley.model.tasks import Task

    report, streams = Report(call), call.settings.stream
    async with call.agent() as agent:
        BY_NAME["SubscribeToTask"].check(agent.card.capabilities)
        stream = agent.subscribe(task_id)
        task = await follow(call, agent, stream, report.event if streams else ignore)
        assert isinstance(task, Task)  # a task's stream has no direct messages
        if streams:
            report.next_step(task)
        else:
            report.task(await agent.get(task_id, history_length=call.settings.history))
