"""``parley push``: receives push notifications at a webhook."""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.redaction import Redactor
from parley.cli.output.streams import Output
from parley.cli.settings.options import CommandOption
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.push import NotificationRefused, PushNotification, WebhookVerification

HOST = "127.0.0.1"
PORT = 9998

EXAMPLES = """\b
Examples:
  parley push listen
  PARLEY_PUSH_SECRET=whsec_... parley push listen --port 8000 --path /a2a
  parley push listen --issuer https://agents.example.com --audience https://hooks.example.net/a2a
  parley push listen -o json | jq .event"""
EXITS = """\b
Exit status:
  0  stopped by Ctrl-C or SIGTERM    1  failed    2  wrong usage"""
SECRETS = """\b
A secret given as a flag can be seen by others in the process table and stays
in the shell's history. PARLEY_PUSH_SECRET, PARLEY_PUSH_BEARER and
PARLEY_PUSH_TOKEN do not."""
PANEL = "Verification"


COMMANDS = Commands("push", "Receive push notifications.")


class Listen(msgspec.Struct, frozen=True):
    """The options of ``parley push listen``."""

    port: Annotated[
        int, CommandOption("The port; 0 selects a free port.", "N", least=0, most=65535)
    ] = PORT
    path: Annotated[str, CommandOption("The path of the webhook.", "PATH")] = "/"
    secret: Annotated[
        str,
        CommandOption(
            "The secret of HMAC-SHA256 signatures.", "TEXT", PANEL, variable="PARLEY_PUSH_SECRET"
        ),
    ] = ""
    issuer: Annotated[
        str, CommandOption("The address of the server that signs JWTs.", "URL", PANEL)
    ] = ""
    audience: Annotated[
        str, CommandOption("The audience of JWTs.", "URL", PANEL, default="the printed address")
    ] = ""
    bearer: Annotated[
        str,
        CommandOption("The token in Authorization.", "TOKEN", PANEL, variable="PARLEY_PUSH_BEARER"),
    ] = ""
    token: Annotated[
        str,
        CommandOption(
            "The token of the configuration.", "TOKEN", PANEL, variable="PARLEY_PUSH_TOKEN"
        ),
    ] = ""


@COMMANDS.add("listen", "output", "verbose", "debug", epilog=f"{EXAMPLES}\n\n{EXITS}\n\n{SECRETS}")
def listen(settings: CommandSettings, output: Output, options: Listen) -> int:
    """Print the push notifications that arrive at a webhook on this machine.

    Listens on 127.0.0.1 until Ctrl-C. A rejected notification is reported with the reason, and
    answered with an error, so that the sender retries. Without a secret, an issuer or a token
    everything is accepted and reported as unverified. With -o json each notification is one line.
    """
    path, issuer, audience = options.path, options.issuer, options.audience
    output.redact = Redactor((options.secret, options.bearer, options.token))
    if not path.startswith("/") or not path.isprintable() or "?" in path or "#" in path:
        raise UsageFailure("--path must begin with a slash, and may not contain ? or #")
    if audience and not issuer:
        raise UsageFailure("--audience applies to JWTs, and needs --issuer")
    if issuer and not audience and not options.port:
        raise UsageFailure("--issuer with --port 0 needs --audience")

    import asyncio

    from parley.push import verify_bearer, verify_hmac, verify_jwt, verify_token
    from parley.server.sockets import ListenError

    with wrong_usage():
        printer = Printer(output, verbose=settings.verbose)
        url = f"http://{HOST}:{options.port}{path}"
        parts = [
            *([verify_hmac(options.secret)] if options.secret else ()),
            *([verify_jwt(issuer=issuer, audience=audience or url)] if issuer else ()),
            *([verify_bearer(options.bearer)] if options.bearer else ()),
            *([verify_token(options.token)] if options.token else ()),
        ]
    try:
        asyncio.run(_listen(printer, options.port, path, parts))
    except ListenError as error:
        raise CommandFailure(
            "PARLEY_ERR_LISTEN", str(error), hint="--port 0 picks a free port"
        ) from None
    return 0


async def _listen(
    printer: Printer, port: int, path: str, verify: list[WebhookVerification]
) -> None:
    """Receive notifications until a signal, or until printing fails."""
    import asyncio

    from starlette.applications import Starlette

    from parley.push import receiver
    from parley.server.run import serving

    # Rejected notifications are reported here already.
    logging.getLogger("parley.push.receiver").setLevel(logging.ERROR)
    hook = receiver(
        printer.notification,
        verify=verify or False,
        acknowledge="after",  # a notification that cannot be printed is not accepted
        on_refused=printer.refused,
    )
    app = Starlette(routes=[hook.route(path)], lifespan=hook.lifespan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows, where Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, printer.ended.set)
    async with serving(app, host=HOST, port=port) as address:
        printer.listening(f"{address.rstrip('/')}{path}", is_verified=bool(verify))
        await printer.ended.wait()
    if printer.broken_pipe is not None:
        raise printer.broken_pipe


class Printer:
    """Prints notifications of a webhook. ``ended`` is set when printing fails."""

    def __init__(self, output: Output, *, verbose: bool) -> None:
        import asyncio

        from parley.cli.output.rendering import EventWriter

        output.is_stream = True  # JSON is one line for each
        self.ended = asyncio.Event()
        self.broken_pipe: BrokenPipeError | None = None
        self._output = output
        self._events = EventWriter(output.text, sys.stdout.flush, verbose=verbose)

    def listening(self, url: str, *, is_verified: bool) -> None:
        """Print the address of the webhook."""
        if self._output.is_json:
            self._output.note(f"listening at {url}")
        else:
            self._output.text.field("Listening", url)
            self._output.text.gap()
            sys.stdout.flush()
        if not is_verified:
            self._output.warn(
                "nothing is verified: --secret, --issuer, --bearer and --token verify the sender"
            )
        self._output.note(
            "a Parley server needs --allow-private-webhooks to call this machine; stop with Ctrl-C"
        )

    async def notification(self, notification: PushNotification) -> None:
        """Print a notification."""
        try:
            self._print(notification)
        except BrokenPipeError as error:
            self.broken_pipe = error
            self.ended.set()
            raise

    def _print(self, notification: PushNotification) -> None:
        from parley.model.operations import StreamResponse
        from parley.model.struct import encode

        output, proof = self._output, notification.verified_by
        if output.is_json:
            document = {
                "id": notification.id,
                "version": notification.version,
                "sentAt": notification.sent_at,
                "verifiedBy": proof or None,
                "event": msgspec.Raw(encode(StreamResponse.of(notification.event))),
            }
            output.json(msgspec.json.encode(document))
            return
        by = f"verified by {proof}" if proof else "not verified"
        output.text.field("Notification", f"{notification.id or 'without an id'} ({by})")
        self._events.event(notification.event)
        output.text.gap()
        sys.stdout.flush()

    def refused(self, refused: NotificationRefused) -> None:
        """Print why a notification is rejected."""
        if self._output.is_json:
            document = {"refused": {"status": refused.status, "reason": refused.reason}}
            self._output.json(msgspec.json.encode(document))
        else:
            self._output.warn(f"rejected with {refused.status}: {refused.reason}")
