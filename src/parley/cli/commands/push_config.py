"""``parley task push-config``: the webhooks of a task."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, cast

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.redaction import Redactor
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    CALL_OPTIONS,
    EXIT_HELP,
    SOURCES_HELP,
    settings_command,
    text_option,
)
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.cli.output.text import TextWriter
    from parley.extensions.push_delivery import PushHistory
    from parley.model.operations import PushEvents, TaskPushNotificationConfig

EXAMPLES = """\b
Examples:
  parley task push-config create 0193... https://hooks.example.com/parley
  parley task push-config list 0193..."""
SECRETS = """\b
A secret given as a flag can be seen by others in the process table and stays in
the shell's history. PARLEY_PUSH_CONFIG_TOKEN and PARLEY_PUSH_CONFIG_CREDENTIALS
do not."""
EPILOG = f"{EXIT_HELP}\n\n{SOURCES_HELP}"
PANEL = "Webhook"
TASK = typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)
CONFIG = typer.Argument(metavar="ID", help="The configuration's id.", show_default=False)


def _events() -> str:
    option: str = typer.Option(
        "",
        "--events",
        metavar="EVENTS",
        help="What the webhook gets: all, or significant (states and complete artifacts).",
        rich_help_panel=PANEL,
        show_default=False,
    )
    return option


EVENTS = _events()


def register(task: typer.Typer) -> None:
    """Add the command group to ``parley task``."""
    group = typer.Typer(rich_markup_mode=None)
    task.add_typer(group, name="push-config", help="Have a webhook told of a task's events.")

    @settings_command(group, "create", *CALL_OPTIONS, epilog=f"{EXAMPLES}\n\n{SECRETS}\n\n{EPILOG}")
    def create(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        url: str = typer.Argument(
            metavar="URL", help="Where the events are to be posted.", show_default=False
        ),
        id: str = text_option(
            PANEL, "--id", "ID", "The configuration's id; the agent gives one if left out."
        ),
        token: str = text_option(
            PANEL,
            "--token",
            "TOKEN",
            "A token by which the webhook knows the agent.",
            "PARLEY_PUSH_CONFIG_TOKEN",
        ),
        scheme: str = text_option(
            PANEL,
            "--auth-scheme",
            "SCHEME",
            "How the agent proves itself: JWT, HMAC-SHA256, Bearer, Basic, ApiKey, OAuth2, "
            "MutualTLS.",
        ),
        credentials: str = text_option(
            PANEL,
            "--auth-credentials",
            "TEXT",
            "With what it does.",
            "PARLEY_PUSH_CONFIG_CREDENTIALS",
        ),
        events: str = EVENTS,
    ) -> int:
        """Have the events of a task posted to a webhook."""
        from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig

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
        _check_events(events)
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _create(call, config, events))

    @settings_command(group, "set", *CALL_OPTIONS, epilog=EPILOG)
    def set_options(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        id: str = CONFIG,
        events: str = EVENTS,
    ) -> int:
        """Say which events a webhook of a task gets."""
        if not events:
            raise UsageFailure("say what the webhook gets: --events all, or --events significant")
        _check_events(events)
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _set(call, id, events))

    @settings_command(group, "history", *CALL_OPTIONS, epilog=EPILOG)
    def history(
        settings: CommandSettings,
        output: Output,
        task_id: str = TASK,
        id: str = typer.Argument(
            "", metavar="[ID]", help="The configuration's id; all without one.", show_default=False
        ),
    ) -> int:
        """Show what was delivered to the webhooks of a task: the last attempts, newest first."""
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _history(call, id))

    @settings_command(group, "get", *CALL_OPTIONS, epilog=EPILOG)
    def get(
        settings: CommandSettings, output: Output, task_id: str = TASK, id: str = CONFIG
    ) -> int:
        """Show one webhook of a task."""
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _get(call, id))

    @settings_command(group, "list", *CALL_OPTIONS, epilog=EPILOG)
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
        page_token: str = text_option(PANEL, "--page-token", "TOKEN", "The page to show."),
    ) -> int:
        """List the webhooks of a task, page by page."""
        call = call_for_task(settings, output, task_id)
        return call.run(lambda: _list(call, page_size, page_token))

    @settings_command(group, "delete", *CALL_OPTIONS, epilog=EPILOG)
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


def _check_events(events: str) -> None:
    if events not in ("", "all", "significant"):
        raise UsageFailure(f"--events is all or significant, not {events!r}")


async def _create(call: AgentCall, config: TaskPushNotificationConfig, events: str) -> None:
    async with call.agent() as agent:
        created = await agent.push.create(call.task_id, config)
        if events:
            await agent.push.set_events(call.task_id, created.id, cast("PushEvents", events))
        _show(call, created)


async def _set(call: AgentCall, id: str, events: str) -> None:
    async with call.agent() as agent:
        await agent.push.set_events(call.task_id, id, cast("PushEvents", events))
    if call.output.is_json:
        call.output.document({"taskId": call.task_id, "id": id, "events": events})
    else:
        call.output.text.field("Push config", id)
        call.output.text.field("Events", events)


async def _history(call: AgentCall, id: str) -> None:
    async with call.agent() as agent:
        found = await agent.push.history(call.task_id, id)
    if call.output.is_json:
        from parley.extensions.push_delivery import GetPushHistoryResponse

        call.output.document(GetPushHistoryResponse(webhooks=found))
        return
    for webhook in found:
        _write_history(call.output.text, webhook)
        call.output.text.gap()


def _write_history(write: TextWriter, webhook: PushHistory) -> None:
    """Write what was delivered to a webhook."""
    write.field("Push config", webhook.id)
    write.field("State", f"{webhook.state}: {webhook.note}" if webhook.note else webhook.state)
    write.field("Events", webhook.events)
    write.field("Delivered", f"up to event {webhook.delivered}")
    for each in webhook.attempts:
        what = each.error or f"HTTP {each.status}"
        event = each.delivery_id.rpartition("/")[2]
        about = f"event {event}, " if event else ""
        again = f", next at {_moment(each.next)}" if each.next is not None else ""
        write.field("Attempt", f"{_moment(each.at)}, {about}{each.duration} ms: {what}{again}")


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


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
