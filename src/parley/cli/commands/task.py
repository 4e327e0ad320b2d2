"""``parley task``: shows, awaits, follows and cancels tasks, and manages their webhooks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec

from parley.cli.commands.send import Save
from parley.cli.output.failures import UsageFailure
from parley.cli.output.redaction import Redactor
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    CALL_OPTIONS,
    EXIT_HELP,
    LOCAL_OPTIONS,
    SOURCES_HELP,
    Argument,
    CommandOption,
)
from parley.cli.settings.table import SETTINGS, CommandSettings
from parley.cli.store.acts import STORE, STORE_VARIABLE, InStore, StoreCommands
from parley.model.tasks import Task, TaskState

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.extensions.push_delivery import PushHistory
    from parley.model.operations import PushEvents, TaskPushNotificationConfig

EXAMPLES = """\b
Examples:
  parley task push-config create 0193... https://hooks.example.com/parley
  parley task push-config list 0193..."""
SECRETS = """\b
A secret given as a flag can be seen by others in the process table and stays
in the shell's history. PARLEY_PUSH_CONFIG_TOKEN and
PARLEY_PUSH_CONFIG_CREDENTIALS do not."""
EPILOG = f"{EXIT_HELP}\n\n{SOURCES_HELP}"
PANEL = "Interaction"
WEBHOOK = "Webhook"
OPERATOR = "All tasks of a store"
OF_STORE = ("context_id", *LOCAL_OPTIONS)
"""The settings that the list of all tasks has too."""

COMMANDS = StoreCommands("task", "Show, await, follow and cancel tasks.")
PUSH = COMMANDS.group("push-config", "Manage the webhooks of a task's events.")


class OfTask(msgspec.Struct, frozen=True):
    """The option that names a task."""

    task_id: Annotated[str, Argument("The task's id.", "TASK_ID")]


class GetOptions(OfTask, frozen=True):
    """The options of ``parley task get``."""

    save: Save = None


@COMMANDS.add("get", "history", *CALL_OPTIONS, "wait", "poll_interval", epilog=EPILOG)
async def get(call: AgentCall, options: GetOptions) -> None:
    """Show a task: its state and its artifacts.

    Once, or with --wait after it ends or asks for something.
    """
    import asyncio

    from parley.cli.calls.follow import Report, poll
    from parley.cli.calls.messages import save_files
    from parley.client.calls.stream_reader import is_settled

    async with call.agent() as agent:
        task = await agent.get(call.task_id, history_length=call.settings.history)
        if call.settings.wait and not is_settled(task.state):
            await asyncio.sleep(call.settings.poll_interval)
            task = await poll(call, agent, call.task_id)
        await save_files(call, agent, task, options.save)
        Report(call).task(task)


class ListOptions(InStore, frozen=True):
    """The options of ``parley task list``."""

    state: Annotated[
        str,
        CommandOption(
            "Only tasks in this state, such as working or input-required.",
            "STATE",
            PANEL,
            "--state --status",
        ),
    ] = ""
    page_size: Annotated[
        int | None,
        CommandOption(
            "How many tasks per page.",
            "N",
            PANEL,
            default="chosen by the agent",
            kind=int,
            least=1,
            most=100,
        ),
    ] = None
    page_token: Annotated[
        str,
        CommandOption("The token of the page to show, from the page before it.", "TOKEN", PANEL),
    ] = ""
    artifacts: Annotated[bool, CommandOption("Include the tasks' artifacts.", panel=PANEL)] = False
    all: Annotated[
        bool, CommandOption("The tasks of all callers, from a store of yours.", panel=OPERATOR)
    ] = False
    caller: Annotated[
        str, CommandOption("With --all: only tasks of this caller.", "ID", OPERATOR)
    ] = ""


@COMMANDS.add("list", "context_id", "history", *CALL_OPTIONS, epilog=EPILOG)
def list_tasks(settings: CommandSettings, output: Output, options: ListOptions) -> int:
    """List your tasks, the last updated first, page by page.

    With --all the tasks of all callers, for the operator of the --store, also while a server uses
    it. Nothing is changed.
    """
    from parley.cli.calls.agent_call import AgentCall

    if options.all:
        _list_all(settings, output, options)
        return 0
    if options.caller or options.store != os.environ.get(STORE_VARIABLE, STORE):
        flag = "--caller" if options.caller else "--store"
        raise UsageFailure(f"{flag} applies to --all; an agent lists only your own tasks")
    call = AgentCall(settings, output)
    return call.run(lambda: _list_own(call, options))


def _list_all(settings: CommandSettings, output: Output, options: ListOptions) -> None:
    """List the tasks of a store. Raises ``UsageFailure`` for options of a call."""
    from parley.cli.store.tasks import PAGE_SIZE, list_tasks, read_token
    from parley.store.admin.admin import TaskFilter

    given = [each for each in SETTINGS if settings.is_flag(each.field)]
    flags = [each.spellings[0] for each in given if each.field not in OF_STORE]
    if flags := [*flags, *(["--artifacts"] if options.artifacts else ())]:
        raise UsageFailure(
            f"--all reads a store and calls no agent: leave out {', '.join(flags)}",
            hint="parley task list --all --store sqlite:///parley.db",
        )
    which = TaskFilter(
        state=parse_state(options.state),
        context_id=settings.context_id or "",
        caller=options.caller,
        before=read_token(options.page_token),
    )
    size = options.page_size or PAGE_SIZE
    if token := options.admin(lambda admin: list_tasks(output, admin, which, size)):
        output.note(f"next: the same command with --page-token {token}")


class ShowOptions(InStore, frozen=True, kw_only=True):
    """The options of ``parley task show``."""

    name: Annotated[
        str, Argument("The task's id, its beginning, or the reference of a failure.", "TASK")
    ]
    contents: Annotated[
        bool, CommandOption("Include the texts of messages and the results of steps.")
    ] = False


@COMMANDS.work("show")
def show(output: Output, admin: Any, options: ShowOptions) -> None:
    """Show a task of a store with its timeline: turns, steps, questions, calls, deliveries.

    For the operator of the --store, also while a server uses it. Nothing is changed. A reference
    that a caller got leads to its task.
    """
    from parley.cli.store.tasks import show_task

    show_task(output, admin, options.name, contents=options.contents)


async def _list_own(call: AgentCall, options: ListOptions) -> None:
    from parley.cli.calls.follow import Report

    settings, state = call.settings, parse_state(options.state)
    async with call.agent() as agent:
        page = await agent.list(
            context_id=settings.context_id or "",
            status=state,
            page_size=options.page_size,
            page_token=options.page_token,
            history_length=settings.history,
            include_artifacts=options.artifacts or None,
        )
        filters = ["--context-id", settings.context_id] if settings.context_id else []
        filters += ["--state", state.name.lower()] if state is not TaskState.UNSPECIFIED else []
        filters += ["--page-size", str(options.page_size)] if options.page_size else []
        filters += ["--artifacts"] if options.artifacts else []
        Report(call).page(page, filters)


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
        raise UsageFailure(f"--state: {text!r} is not a state; the states are {known}") from None


class DownloadOptions(OfTask, frozen=True):
    """The options of ``parley task download``."""

    folder: Annotated[
        Path | None,
        Argument(
            "The folder to save in; it is created if needed.", "[FOLDER]", default=".", kind=Path
        ),
    ] = None
    overwrite: Annotated[
        bool,
        CommandOption(
            "Replace files of the same name, instead of saving under new names.", panel="Output"
        ),
    ] = False


@COMMANDS.add("download", *CALL_OPTIONS, epilog=EPILOG)
async def download(call: AgentCall, options: DownloadOptions) -> None:
    """Save the artifacts of a task in a folder, and print the paths of the files.

    Texts and data become files too, named after their artifact. Names are made safe.
    """
    from parley.cli.calls.messages import save_artifacts

    async with call.agent() as agent:
        task = await agent.get(call.task_id, history_length=0)
        paths = await save_artifacts(
            call, agent, task, options.folder or Path(), overwrite=options.overwrite
        )
    files = [str(path) for path in paths]
    call.output.report({"files": files}, *[("File", file) for file in files])


@COMMANDS.add("cancel", "metadata", *CALL_OPTIONS, epilog=EPILOG)
async def cancel(call: AgentCall, options: OfTask) -> None:
    """Cancel a task, and show its resulting state."""
    from parley.cli.calls.follow import Report

    async with call.agent() as agent:
        task = await agent.cancel(call.task_id, metadata=call.settings.metadata)
        Report(call).task(task)


@COMMANDS.add("subscribe", "history", *CALL_OPTIONS, "poll_interval", epilog=EPILOG)
async def subscribe(call: AgentCall, options: OfTask) -> None:
    """Follow a task's events until it ends or asks for something.

    With --stream every event is shown as it comes; without it, only the final state of the task. A
    broken stream is resumed, or the task is polled.
    """
    from parley.cli.calls.follow import Report, follow, ignore
    from parley.model.operations import BY_NAME

    report, streams = Report(call), call.settings.stream
    async with call.agent() as agent:
        BY_NAME["SubscribeToTask"].check(agent.card.capabilities)
        stream = agent.subscribe(call.task_id)
        task = await follow(call, agent, stream, report.event if streams else ignore)
        assert isinstance(task, Task)  # a task's stream has no direct messages
        if streams:
            report.next_step(task)
        else:
            report.task(await agent.get(call.task_id, history_length=call.settings.history))


class Authorize(OfTask, frozen=True):
    """The options of ``parley task authorize``."""

    trust: Annotated[
        tuple[str, ...],
        CommandOption(
            "Another origin that may receive the credential: the agent that asks, if another "
            "agent forwards it.",
            "ORIGIN",
            PANEL,
        ),
    ] = ()
    refuse: Annotated[bool, CommandOption("Decline, and send no credential.", panel=PANEL)] = False


@COMMANDS.add("authorize", *CALL_OPTIONS, epilog=EPILOG)
async def authorize(call: AgentCall, options: Authorize) -> None:
    """Send a task in the state AUTH_REQUIRED the credential that it asks for.

    The token, the API key, or the user and the password as USER:PASSWORD, are read from standard
    input or typed. They go to the callback of the task, once, and into no message. If a login page
    is needed instead, its address is shown.
    """
    from parley.cli.calls.follow import credential_for, describe
    from parley.extensions.questions import auth_request

    async with call.agent() as agent:
        task = await agent.get(call.task_id, history_length=0)
        request = auth_request(task)
        if request is None:
            raise UsageFailure(
                f"task {call.task_id} asks for no credential: its state is {task.state.value}",
                hint=f"show it with: {call.command('task get')}",
            )
        describe(call, request)
        if not request.callback:
            return
        given = {"error": "access_denied"} if options.refuse else await credential_for(request)
        await agent.authorize(task, given, trust=options.trust, return_immediately=True)
        call.output.note(f"accepted; wait for the task with: {call.command('task get --wait')}")


class OfWebhook(OfTask, frozen=True):
    """The options of a webhook of a task."""

    id: Annotated[str, Argument("The configuration's id.", "ID")]


Events = Annotated[
    str,
    CommandOption(
        "The events for the webhook: all, or significant (states and complete artifacts).",
        "EVENTS",
        WEBHOOK,
    ),
]


class Create(OfTask, frozen=True):
    """The options of ``parley task push-config create``."""

    url: Annotated[str, Argument("The address that receives the events.", "URL")]
    id: Annotated[
        str,
        CommandOption("The configuration's id; by default the agent chooses it.", "ID", WEBHOOK),
    ] = ""
    token: Annotated[
        str,
        CommandOption(
            "A token by which the webhook recognizes the agent.",
            "TOKEN",
            WEBHOOK,
            variable="PARLEY_PUSH_CONFIG_TOKEN",
        ),
    ] = ""
    auth_scheme: Annotated[
        str,
        CommandOption(
            "How the agent authenticates itself: JWT, HMAC-SHA256, Bearer, Basic, ApiKey, OAuth2, "
            "MutualTLS.",
            "SCHEME",
            WEBHOOK,
        ),
    ] = ""
    auth_credentials: Annotated[
        str,
        CommandOption(
            "The credentials of the scheme.",
            "TEXT",
            WEBHOOK,
            variable="PARLEY_PUSH_CONFIG_CREDENTIALS",
        ),
    ] = ""
    events: Events = ""


@PUSH.add("create", *CALL_OPTIONS, epilog=f"{EXAMPLES}\n\n{SECRETS}\n\n{EPILOG}")
async def create(call: AgentCall, options: Create) -> None:
    """Add a webhook that receives the events of a task."""
    from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig

    token, scheme, credentials = options.token, options.auth_scheme, options.auth_credentials
    call.output.redact = Redactor(
        (*call.settings.secrets, token, credentials), call.settings.svc_param
    )
    if credentials and not scheme:
        raise UsageFailure("--auth-credentials needs --auth-scheme, such as Bearer")
    proof = AuthenticationInfo(scheme=scheme, credentials=credentials) if scheme else None
    config = TaskPushNotificationConfig(
        id=options.id, task_id=options.task_id, url=options.url, token=token, authentication=proof
    )
    _check_events(options.events)
    async with call.agent() as agent:
        created = await agent.push.create(call.task_id, config)
        if options.events:
            events = cast("PushEvents", options.events)
            await agent.push.set_events(call.task_id, created.id, events)
        _show(call, created)


class Set(OfWebhook, frozen=True):
    """The options of ``parley task push-config set``."""

    events: Events = ""


@PUSH.add("set", *CALL_OPTIONS, epilog=EPILOG)
async def set_options(call: AgentCall, options: Set) -> None:
    """Choose the events that a webhook of a task receives."""
    if not options.events:
        raise UsageFailure(
            "choose the events of the webhook: --events all, or --events significant"
        )
    _check_events(options.events)
    id, events = options.id, cast("PushEvents", options.events)
    async with call.agent() as agent:
        await agent.push.set_events(call.task_id, id, events)
    call.output.report(
        {"taskId": call.task_id, "id": id, "events": events},
        ("Push config", id),
        ("Events", events),
    )


class History(OfTask, frozen=True):
    """The options of ``parley task push-config history``."""

    id: Annotated[str, Argument("The configuration's id; by default all.", "[ID]")] = ""


@PUSH.add("history", *CALL_OPTIONS, epilog=EPILOG)
async def history(call: AgentCall, options: History) -> None:
    """Show the deliveries to the webhooks of a task: the last attempts, newest first."""
    async with call.agent() as agent:
        found = await agent.push.history(call.task_id, options.id)
    if call.output.is_json:
        from parley.extensions.push_delivery import GetPushHistoryResponse

        call.output.document(GetPushHistoryResponse(webhooks=found))
        return
    for webhook in found:
        note = f": {webhook.note}" if webhook.note else ""
        call.output.report(
            None,
            ("Push config", webhook.id),
            ("State", webhook.state + note),
            ("Events", webhook.events),
            ("Delivered", f"up to event {webhook.delivered}"),
            *_attempts(webhook),
        )
        call.output.text.gap()


@PUSH.add("get", *CALL_OPTIONS, epilog=EPILOG)
async def get_config(call: AgentCall, options: OfWebhook) -> None:
    """Show one webhook of a task."""
    async with call.agent() as agent:
        _show(call, await agent.push.get(call.task_id, options.id))


class ListedWebhooks(OfTask, frozen=True):
    """The options of ``parley task push-config list``."""

    page_size: Annotated[
        int | None,
        CommandOption(
            "How many webhooks per page.",
            "N",
            WEBHOOK,
            default="chosen by the agent",
            kind=int,
            least=1,
        ),
    ] = None
    page_token: Annotated[str, CommandOption("The page to show.", "TOKEN", WEBHOOK)] = ""


@PUSH.add("list", *CALL_OPTIONS, epilog=EPILOG)
async def list_configs(call: AgentCall, options: ListedWebhooks) -> None:
    """List the webhooks of a task, page by page."""
    output, size = call.output, options.page_size
    async with call.agent() as agent:
        page = await agent.push.page(
            call.task_id, page_size=size or 0, page_token=options.page_token
        )
    if output.is_json and not output.is_stream:
        output.document(page)
    else:
        for config in page.configs:
            _show(call, config)
            if not output.is_json:
                output.text.gap()
    if page.next_page_token:
        sizes = ("--page-size", str(size)) if size else ()
        more = (*sizes, "--page-token", page.next_page_token, *call.task_argument)
        output.note(f"next: {call.command('task push-config list', *more)}")


@PUSH.add("delete", *CALL_OPTIONS, epilog=EPILOG)
async def delete(call: AgentCall, options: OfWebhook) -> None:
    """Remove a webhook from a task. It is no error if the webhook does not exist."""
    async with call.agent() as agent:
        await agent.push.delete(call.task_id, options.id)
    call.output.report({}, ("Deleted", options.id))


def _check_events(events: str) -> None:
    if events not in ("", "all", "significant"):
        raise UsageFailure(f"--events must be all or significant, not {events!r}")


def _attempts(webhook: PushHistory) -> Iterator[tuple[str, str]]:
    for each in webhook.attempts:
        what = each.error or f"HTTP {each.status}"
        event = each.delivery_id.rpartition("/")[2]
        about = f"event {event}, " if event else ""
        again = f", next at {_moment(each.next)}" if each.next is not None else ""
        yield "Attempt", f"{_moment(each.at)}, {about}{each.duration} ms: {what}{again}"


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _show(call: AgentCall, config: TaskPushNotificationConfig) -> None:
    """Show a configuration, as text without its secrets."""
    fields = [("Task", config.task_id), ("Push config", config.id), ("URL", config.url)]
    if config.token:
        fields.append(("Token", "set, not shown"))
    if config.authentication is not None:
        fields.append(("Authentication", config.authentication.scheme))
    call.output.report(config, *fields)
