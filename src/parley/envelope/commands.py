"""``parley envelope``: calls agents by the envelope protocol, and listens to them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    AGENT_OPTIONS,
    EXIT_HELP,
    OUTPUT_OPTIONS,
    SECRETS_HELP,
    SOURCES_HELP,
    settings_command,
)
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import EXITS as KEYS_EXITS
from parley.cli.store.acts import audit_option, with_record

if TYPE_CHECKING:
    from parley.envelope.client.client import EnvelopeClient
    from parley.envelope.command_call import EnvelopeCall

OPTIONS = tuple(
    name
    for name in AGENT_OPTIONS
    if name not in ("agent_card", "transport", "a2a_version", "svc_param")
)
"""The settings of a connection that the address does not say itself."""

LISTEN_OUTPUT = tuple(name for name in OUTPUT_OPTIONS if name != "stream")
SUB_TYPES = ("query", "command", "notification")
PRIORITIES = ("low", "normal", "high", "urgent")

SEND_EXAMPLES = """\b
Examples:
  parley envelope send https://agents.example.com search --parameters '{"query": "refunds"}'
  parley envelope send wss://agents.example.com/envelope report --stream
  parley envelope send localhost:9999 a2a.ListTasks
  parley envelope send localhost:9999 report --sub-type command --parameters @order.json
  parley envelope send localhost:9999 order --signing-key shop-key.json"""

LISTEN_EXAMPLES = """\b
Examples:
  parley envelope listen https://agents.example.com
  parley envelope listen localhost:9999 --register card.json --answer '{"ok": true}'
  parley envelope listen localhost:9999 -o json | jq .payload"""

LISTEN_EXITS = """\b
Exit status:
  0  stopped by Ctrl-C, or after --count    1  failed    2  wrong usage
  3  out of reach                           4  credentials missing or refused"""

URL = typer.Argument(
    metavar="URL",
    help="The agent: its address, or that of its envelope interface (ws, wss, or .../envelope).",
    show_default=False,
)
SIGNING_KEY: Any = typer.Option(
    None,
    "--signing-key",
    metavar="PATH",
    help="Sign every message with the key in this file (parley keys share --to).",
    show_default=False,
    rich_help_panel="Message",
)
REGISTER: Any = typer.Option(
    None,
    "--register",
    metavar="PATH",
    help="Register this envelope card: then REQUESTs to its agent come here.",
    show_default=False,
    rich_help_panel="Message",
)
AGENT_ID: Any = typer.Option(
    "",
    "--agent-id",
    metavar="ID",
    help="Who sends.  [default: what the credentials are for, else an id by chance]",
    show_default=False,
    rich_help_panel="Message",
)
HTTP_ONLY: Any = typer.Option(
    False,
    "--http",
    help="Use HTTP alone, and no WebSocket.",
    show_default=False,
    rich_help_panel="Connection",
)


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="envelope", help="Call agents by messages over a WebSocket.")

    @group.callback()
    def top() -> None:
        """Call agents by the envelope protocol: messages over a WebSocket, or by HTTP."""

    @settings_command(
        group,
        "send",
        "context_id",
        "task_id",
        *OPTIONS,
        "timeout",
        *OUTPUT_OPTIONS,
        epilog="\n\n".join((SEND_EXAMPLES, EXIT_HELP, SOURCES_HELP, SECRETS_HELP)),
    )
    def send(
        settings: CommandSettings,
        output: Output,
        url: str = URL,
        action: str = typer.Argument(
            metavar="ACTION",
            help="The id of a skill, or an operation of A2A such as a2a.GetTask.",
            show_default=False,
        ),
        parameters: str = typer.Option(
            "",
            "--parameters",
            "-p",
            metavar="JSON|@PATH|-",
            help="The parameters: JSON, a file of it, or standard input.  [default: {}]",
            show_default=False,
            rich_help_panel="Message",
        ),
        sub_type: str = typer.Option(
            "query",
            "--sub-type",
            "--type",
            metavar="|".join(SUB_TYPES),
            help="What is expected: an answer, that it begins, or nothing.",
            rich_help_panel="Message",
        ),
        priority: str = typer.Option(
            "normal",
            "--priority",
            metavar="|".join(PRIORITIES),
            help="The order among your own requests that wait.",
            rich_help_panel="Message",
        ),
        target: str = typer.Option(
            "",
            "--target",
            metavar="ID",
            help="Another agent that the server knows, by its id.",
            show_default=False,
            rich_help_panel="Message",
        ),
        agent_id: str = AGENT_ID,
        signing_key: Path = SIGNING_KEY,
        http: bool = HTTP_ONLY,
    ) -> int:
        """Send a REQUEST to an agent and print what it answers.

        Of a query the results, of a command that it began; with --stream the EVENTs as they come,
        until the last one. An unanswered request is sent again, with the same messageId.
        """
        _check_choice("--sub-type", sub_type, SUB_TYPES)
        _check_choice("--priority", priority, PRIORITIES)
        if sub_type == "notification" and settings.stream:
            raise UsageFailure("a notification has no answer: leave out --stream")
        if not action:
            raise UsageFailure("name the action: the id of a skill, or one such as a2a.GetTask")
        value = _json_in(parameters, "--parameters", {})

        from parley.envelope.command_call import EnvelopeCall, read_signing_key

        call = EnvelopeCall(settings, output, url, action=action)
        key = read_signing_key(signing_key)
        options = {
            "priority": priority,
            "context_id": settings.context_id or "",
            "task_id": settings.task_id or "",
            "target": target,
        }

        async def work() -> None:
            async with call.client(agent_id=agent_id, key=key, http_only=http) as client:
                await _send(call, client, action, value, sub_type, options)

        return call.run(work)

    @settings_command(
        group,
        "listen",
        *OPTIONS,
        *LISTEN_OUTPUT,
        epilog="\n\n".join((LISTEN_EXAMPLES, LISTEN_EXITS, SOURCES_HELP, SECRETS_HELP)),
    )
    def listen(
        settings: CommandSettings,
        output: Output,
        url: str = URL,
        register: Path = REGISTER,
        answer: str = typer.Option(
            "",
            "--answer",
            metavar="JSON|@PATH",
            help="Answer every REQUEST with this result.  [default: they are refused]",
            show_default=False,
            rich_help_panel="Message",
        ),
        count: int = typer.Option(
            None,
            "--count",
            metavar="N",
            min=1,
            help="End after so many messages.  [default: at Ctrl-C]",
            show_default=False,
            rich_help_panel="Output",
        ),
        agent_id: str = AGENT_ID,
        signing_key: Path = SIGNING_KEY,
    ) -> int:
        """Print what an agent's server sends by itself: EVENTs, HEARTBEATs, and REQUESTs.

        Stays connected, and connects again, until Ctrl-C. With -o json each message is one line.
        """
        from parley.envelope.command_call import EnvelopeCall, read_envelope_card
        from parley.envelope.command_call import read_signing_key as read_key

        result = _json_in(answer, "--answer", None) if answer else None
        output.is_stream = True  # JSON is one line for each
        call = EnvelopeCall(settings, output, url, is_endless=True)
        key = read_key(signing_key)
        card = None if register is None else read_envelope_card(register)
        id = agent_id or ("" if card is None else card.agent_info.id)

        async def work() -> None:
            async with call.client(agent_id=id, key=key, socket_only=True) as client:
                if answer:
                    client.on_request(lambda _: result)
                if card is not None:
                    await client.register(card)
                await call.listen(client, count)

        return call.run(work)


async def _send(
    call: EnvelopeCall,
    client: EnvelopeClient,
    action: str,
    parameters: Any,
    sub_type: str,
    options: dict[str, Any],
) -> None:
    if sub_type == "notification":
        await client.notify(action, parameters, **options)
        call.report.sent()
        return
    options = {**options, "sub_type": sub_type, "timeout": call.settings.timeout}
    if not call.settings.stream:
        call.report.answer(await client.request(action, parameters, **options))
        return
    async with client.stream(action, parameters, **options) as stream:
        async for event in stream:
            call.task_id = stream.task_id or call.task_id
            call.report.event(event)


def _check_choice(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageFailure(f"{flag} is one of {', '.join(known)}, not {value!r:.60}")


def _json_in(text: str, flag: str, default: Any) -> Any:
    """Return the value of an option that is JSON, a file of it, or standard input."""
    if not text:
        return default
    try:
        if text == "-":
            data: str | bytes = sys.stdin.buffer.read()
        elif text.startswith("@"):
            data = Path(text[1:]).read_bytes()
        else:
            data = text
        return msgspec.json.decode(data)
    except OSError as error:
        raise UsageFailure(f"{flag}: {text[1:]} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageFailure(
            f"{flag} is no JSON: {error}", hint="""quote text twice: '"like this"'"""
        ) from None


SHARE_EXAMPLES = """\b
Examples:
  parley keys share envelope-keys.json --owner shop --to shop-key.json
  parley keys share envelope-keys.json --owner press --public press-public.json
  parley serve agent.py --envelope-keys envelope-keys.json"""


def register_share(group: typer.Typer) -> None:
    """Add the command to ``parley keys``."""

    @settings_command(group, "share", "output", "debug", epilog=f"{SHARE_EXAMPLES}\n\n{KEYS_EXITS}")
    def share(
        settings: CommandSettings,
        output: Output,
        file: str = typer.Argument(
            "envelope-keys.json", metavar="FILE", help="The file of the server; it may be new."
        ),
        owner: str = typer.Option(
            ...,
            "--owner",
            metavar="ID",
            help="Who signs with it: the agentId of its messages, and its id as a caller.",
            show_default=False,
        ),
        to: str = typer.Option(
            "",
            "--to",
            metavar="FILE",
            help="Make a shared secret, for HMAC-SHA256, and this file of it for the sender.",
            show_default=False,
        ),
        public: str = typer.Option(
            "",
            "--public",
            metavar="FILE",
            help="Take the sender's public keys for Ed25519 from this file (JWK or JWK Set).",
            show_default=False,
        ),
        store: str = audit_option(),
    ) -> None:
        """Add a key of somebody who signs messages of the envelope protocol to a file.

        A server with --envelope-keys FILE verifies messages with it, and reads the file again when
        it changes. Only its owner can read the file; all replicas of a server need the same.
        """
        from parley.envelope.command_call import share as share_key

        with_record(store, lambda record: share_key(output, file, owner, public, to, record))
