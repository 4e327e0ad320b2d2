"""``parley envelope``: calls agents by the envelope protocol, and listens to them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    AGENT_OPTIONS,
    EXIT_HELP,
    LOCAL_OPTIONS,
    OUTPUT_OPTIONS,
    SECRETS_HELP,
    SOURCES_HELP,
    Argument,
    CommandOption,
)
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import EXITS as KEYS_EXITS
from parley.cli.store.acts import Recorded, with_record

if TYPE_CHECKING:
    from parley.envelope.client.client import EnvelopeClient
    from parley.envelope.command_call import EnvelopeCall

OPTIONS = tuple(
    name for name in AGENT_OPTIONS if name not in ("transport", "a2a_version", "svc_param")
)
"""The settings of a connection by this protocol."""

LISTEN_OUTPUT = tuple(name for name in OUTPUT_OPTIONS if name != "stream")

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
  3  not reachable                          4  credentials missing or rejected"""

SHARE_EXAMPLES = """\b
Examples:
  parley keys share envelope-keys.json --owner shop --to shop-key.json
  parley keys share envelope-keys.json --owner press --public press-public.json
  parley serve agent.py --envelope-keys envelope-keys.json"""

COMMANDS = Commands("envelope", "Call agents by messages over a WebSocket.")
SHARE = Commands()

register = COMMANDS.register
register_share = SHARE.register


class Sender(msgspec.Struct, frozen=True):
    """The options of the sender."""

    agent_id: Annotated[
        str,
        CommandOption(
            "Who sends.", "ID", "Message", default="the id of the credentials, else a random id"
        ),
    ] = ""
    signing_key: Annotated[
        str,
        CommandOption(
            "Sign every message with the key in this file (parley keys share --to).",
            "PATH",
            "Message",
        ),
    ] = ""


class SendingOptions(Sender, frozen=True):
    """The options of ``parley envelope send``."""

    action: Annotated[
        str, Argument("The id of a skill, or an operation of A2A such as a2a.GetTask.", "ACTION")
    ] = ""
    parameters: Annotated[
        str,
        CommandOption(
            "The parameters: JSON, a file of it, or standard input.",
            "JSON|@PATH|-",
            "Message",
            "--parameters -p",
            default="{}",
        ),
    ] = ""
    sub_type: Annotated[
        str,
        CommandOption(
            "The expected reply: an answer, an acceptance, or nothing.",
            panel="Message",
            flag="--sub-type --type",
            choices=("query", "command", "notification"),
        ),
    ] = "query"
    priority: Annotated[
        str,
        CommandOption(
            "The order among your own requests that wait.",
            panel="Message",
            choices=("low", "normal", "high", "urgent"),
        ),
    ] = "normal"
    target: Annotated[
        str, CommandOption("Another agent that the server knows, by its id.", "ID", "Message")
    ] = ""
    http: Annotated[
        bool, CommandOption("Use HTTP alone, and no WebSocket.", panel="Connection")
    ] = False


class ListeningOptions(Sender, frozen=True):
    """The options of ``parley envelope listen``."""

    register: Annotated[
        str,
        CommandOption(
            "Register this envelope card: then REQUESTs to its agent come here.", "PATH", "Message"
        ),
    ] = ""
    answer: Annotated[
        str,
        CommandOption(
            "Answer every REQUEST with this result.",
            "JSON|@PATH",
            "Message",
            default="they are refused",
        ),
    ] = ""
    count: Annotated[
        int | None,
        CommandOption(
            "End after so many messages.", "N", "Output", default="at Ctrl-C", kind=int, least=1
        ),
    ] = None


@COMMANDS.add(
    "send",
    "context_id",
    "task_id",
    *OPTIONS,
    "registry",
    "timeout",
    *OUTPUT_OPTIONS,
    epilog="\n\n".join((SEND_EXAMPLES, EXIT_HELP, SOURCES_HELP, SECRETS_HELP)),
)
def send(settings: CommandSettings, output: Output, options: SendingOptions) -> int:
    """Send a REQUEST to an agent and print the answer.

    A query prints its results, a command its acceptance; with --stream the EVENTs are printed as
    they arrive, until the last one. An unanswered request is sent again, with the same messageId.
    Of two arguments the first is the agent.
    """
    if options.sub_type == "notification" and settings.stream:
        raise UsageFailure("a notification has no answer: leave out --stream")
    if not options.action or "://" in options.action:  # one word, and it is the agent
        raise UsageFailure("name the action: the id of a skill, or one such as a2a.GetTask")
    parameters = _json_in(options.parameters, "--parameters", {})
    from parley.envelope.command_call import EnvelopeCall, read_signing_key

    call = EnvelopeCall(settings, output, action=options.action)
    key = read_signing_key(options.signing_key)

    async def work() -> None:
        way = call.client("http" if options.http else "auto", agent_id=options.agent_id, key=key)
        async with way as client:
            await _send(call, client, options, parameters)

    return call.run(work)


async def _send(
    call: EnvelopeCall, client: EnvelopeClient, options: SendingOptions, parameters: Any
) -> None:
    settings = call.settings
    given: Any = {
        "priority": options.priority,
        "context_id": settings.context_id or "",
        "task_id": settings.task_id or "",
        "target": options.target,
    }
    if options.sub_type == "notification":
        await client.notify(options.action, parameters, **given)
        call.report.sent()
        return
    given |= {"sub_type": options.sub_type, "timeout": settings.timeout}
    if not settings.stream:
        call.report.answer(await client.request(options.action, parameters, **given))
        return
    async with client.stream(options.action, parameters, **given) as stream:
        async for event in stream:
            call.task_id = stream.task_id or call.task_id
            call.report.event(event)


@COMMANDS.add(
    "listen",
    *OPTIONS,
    "registry",
    *LISTEN_OUTPUT,
    epilog="\n\n".join((LISTEN_EXAMPLES, LISTEN_EXITS, SOURCES_HELP, SECRETS_HELP)),
)
def listen(settings: CommandSettings, output: Output, options: ListeningOptions) -> int:
    """Print unsolicited messages of an agent's server: EVENTs, HEARTBEATs, and REQUESTs.

    Stays connected, and reconnects, until Ctrl-C. With -o json each message is one line.
    """
    from parley.envelope.command_call import EnvelopeCall, read_envelope_card, read_signing_key

    result = _json_in(options.answer, "--answer", None)
    output.is_stream = True  # JSON is one line for each
    call = EnvelopeCall(settings, output, is_endless=True)
    key = read_signing_key(options.signing_key)
    card = read_envelope_card(options.register) if options.register else None
    id = options.agent_id or ("" if card is None else card.agent_info.id)

    async def work() -> None:
        async with call.client("socket", agent_id=id, key=key) as client:
            if options.answer:
                client.on_request(lambda _: result)
            if card is not None:
                await client.register(card)
            await call.listen(client, options.count)

    return call.run(work)


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
            f"{flag} is not JSON: {error}", hint="""quote text twice: '"like this"'"""
        ) from None


class SharedKey(Recorded, frozen=True):
    """The options of ``parley keys share``."""

    file: Annotated[str, Argument("The file of the server; it may be new.", "[FILE]")] = (
        "envelope-keys.json"
    )
    owner: Annotated[
        str,
        CommandOption(
            "Who signs with it: the agentId of its messages, and its id as a caller.", "ID"
        ),
    ] = ""
    to: Annotated[
        str,
        CommandOption(
            "Make a shared secret, for HMAC-SHA256, and this file of it for the sender.", "FILE"
        ),
    ] = ""
    public: Annotated[
        str,
        CommandOption(
            "Take the sender's public keys for Ed25519 from this file (JWK or JWK Set).", "FILE"
        ),
    ] = ""


@SHARE.add("share", *LOCAL_OPTIONS, epilog=f"{SHARE_EXAMPLES}\n\n{KEYS_EXITS}")
def share(settings: CommandSettings, output: Output, options: SharedKey) -> None:
    """Add a key of a sender that signs messages of the envelope protocol to a file.

    A server with --envelope-keys FILE verifies messages with it, and reloads the file when it
    changes. Only its owner can read the file; all replicas of a server need the same file.
    """
    from parley.envelope.command_call import share as share_key

    given = options.file, options.owner, options.public, options.to
    with_record(options.store, lambda record: share_key(output, *given, record))
