"""``parley task push-config``: the webhooks of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.redaction import Redactor
from parley.cli.output.streams import Output
from parley.cli.settings.options import CLIENT_OPTIONS, EXIT_HELP, SOURCES_HELP, settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.cli.output.text import TextWriter
    from parley.model.push import TaskPushNotificationConfig

EXAMPLES = """\b
Examples:
  parley task push-config create 0193... https://hooks.example.com/parley
  parley task push-config list 0193..."""
EPILOG = f"{EXIT_HELP}\n\n{SOURCES_HELP}"
PANEL = "Webhook"
TASK = typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)
CONFIG = typer.Argument(metavar="ID", help="The configuration's id.", show_default=False)


def _option(flag: str, metavar: str, text: str) -> str:
    option: str = typer.Option(
        "", flag, metavar=metavar, help=text, rich_help_panel=PANEL, show_default=False
    )
    return option


def register(task: typer.Typer) -> None:
    """Add the command group to ``parley task``."""
    group = typer.Typer(rich_markup_mode=None)
    task.add_typer(group, name="push-config", help="Have a webhook told of a task's events.")

    @settings_command(group, "create", *CLIENT_OPTIONS, epilog=f"{EXAMPLES}\n\n{EPILOG}")
    def create(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        url: str = typer.Argument(
            metavar="URL", help="Where the events are to be posted.", show_default=False
        ),
        id: str = _option("--id", "ID", "The configuration's id; the agent gives one if left out."),
        token: str = _option("--token", "TOKEN", "A token by which the webhook knows the agent."),
        scheme: str = _option(
            "--auth-scheme", "SCHEME", "How the agent authenticates: Bearer, ..."
        ),
        credentials: str = _option("--auth-credentials", "TEXT", "With what it does."),
    ) -> int:
        """Have the events of a task posted to a webhook."""
        from parley.model.push import AuthenticationInfo, TaskPushNotificationConfig

        output.redact = Redactor(
            (settings.bearer, settings.api_key, token, credentials), settings.svc_param
        )
        if credentials and not scheme:
            raise UsageFailure("--auth-credentials needs --auth-scheme, such as Bearer")
        config = TaskPushNotificationConfig(
            id=id,
            task_id=task_id,
            url=url,
            token=token,
            authentication=AuthenticationInfo(scheme=scheme, credentials=credentials)
            if scheme
            else None,
        )
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _create(call, config))

    @settings_command(group, "get", *CLIENT_OPTIONS, epilog=EPILOG)
    def get(
        settings: CommandSettings, output: Output, task_id: str = TASK, id: str = CONFIG
    ) -> int:
        """Show one webhook of a task."""
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _get(call, id))

    @settings_command(group, "list", *CLIENT_OPTIONS, epilog=EPILOG)
    def list_configs(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        page_size: int = typer.Option(
            None,
            "--page-size",
            metavar="N",
            min=1,
            help="How many to a page.  [default: as the agent sees fit]",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        page_token: str = _option("--page-token", "TOKEN", "The page to show."),
    ) -> int:
        """List the webhooks of a task, page by page."""
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _list(call, page_size, page_token))

    @settings_command(group, "delete", *CLIENT_OPTIONS, epilog=EPILOG)
    def delete(
        settings: CommandSettings, output: Output, task_id: str = TASK, id: str = CONFIG
    ) -> int:
        """Remove a webhook from a task. That there is none is no error."""
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _delete(call, id))


def call_for_task(settings: CommandSettings, output: Output, task_id: str) -> AgentCall:
    """Return a call that is about a task."""
    from parley.cli.calls.agent_call import AgentCall

    call = AgentCall(settings, output)
    call.task_id = task_id
    return call


async def _create(call: AgentCall, config: TaskPushNotificationConfig) -> None:
    async with call.agent() as agent:
        _show(call, await agent.push.create(call.task_id, config))


async def _get(call: AgentCall, id: str) -> None:
    async with call.agent() as agent:
        _show(call, await agent.push.get(call.task_id, id))


async def _list(call: AgentCall, page_size: int | None, page_token: str) -> None:
    output = call.output
    async with call.agent() as agent:
        page = await agent.push.page(call.task_id, page_size=page_size or 0, page_token=page_token)
    if output.is_json and not output.is_stream:
        output.document(page)
    else:
        for config in page.configs:
            _show(call, config)
            if not output.is_json:
                output.text.gap()
    if page.next_page_token:
        sizes = ("--page-size", str(page_size)) if page_size else ()
        more = (*sizes, "--page-token", page.next_page_token, *call.task_argument)
        output.note(f"next: {call.command('task push-config list', *more)}")


async def _delete(call: AgentCall, id: str) -> None:
    async with call.agent() as agent:
        await agent.push.delete(call.task_id, id)
    if call.output.is_json:
        call.output.json(b"{}")
    else:
        call.output.text.field("Deleted", id)


def _show(call: AgentCall, config: TaskPushNotificationConfig) -> None:
    if call.output.is_json:
        call.output.document(config)
    else:
        _write(call.output.text, config)


def _write(write: TextWriter, config: TaskPushNotificationConfig) -> None:
    """Write a configuration without its secrets."""
    write.field("Task", config.task_id)
    write.field("Push config", config.id)
    write.field("URL", config.url)
    if config.token:
        write.field("Token", "set, not shown")
    if config.authentication is not None:
        write.field("Authentication", config.authentication.scheme)
