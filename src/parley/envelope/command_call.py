"""A call of an agent by the envelope protocol, by a command."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley import envelope
from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import INTERRUPTED, CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import json_text, shell_words
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import Record
from parley.envelope.cards import EnvelopeCard, read_card
from parley.envelope.client.client import ENDPOINT, EnvelopeClient
from parley.envelope.client.session import EnvelopeAnswer, EnvelopeEvent, EnvelopeFailed
from parley.envelope.codec import members_of
from parley.envelope.messages import Envelope, RequestPayload, ResponsePayload, Status
from parley.envelope.server.guard import MAX_BYTES, EnvelopeKeysInvalid, read_envelope_keys
from parley.envelope.signatures import ED25519, SHORTEST_SECRET, EnvelopeKey, jwk_of, read_key
from parley.host.program import invocation
from parley.model.errors import A2AError
from parley.security.networks import is_loopback
from parley.security.signing.canonical import read_object
from parley.security.signing.keys import WriteUnderWay, read_private, replacing

MAX_FILE = 1024 * 1024

_OF_SIGNATURES = frozenset(
    {"SIGNATURE_REQUIRED", "SIGNATURE_INVALID", "MESSAGE_OUTDATED", "MESSAGE_REPLAYED"}
)
_SIGNATURE_HINT = (
    "--signing-key PATH signs with a key that the server has: parley keys share, and "
    "parley serve --envelope-keys"
)
_SOURCE_HINT = "the sender's id (--agent-id, or the card's id) needs its own credentials or key"


class EnvelopeCall(AgentCall):
    """The state of one command of ``parley envelope``. ``is_endless``: Ctrl-C is its usual end."""

    def __init__(
        self,
        settings: CommandSettings,
        output: Output,
        *,
        action: str = "",
        is_endless: bool = False,
    ) -> None:
        super().__init__(settings, output)
        self.action = action
        self._is_endless = is_endless
        self.report = EnvelopeReport(self)

    def run(self, work: Callable[[], Awaitable[None]]) -> int:
        """Run ``work`` and return the exit status. Raises ``CommandFailure``."""

        async def translated() -> None:
            try:
                await work()
            except EnvelopeFailed as failed:
                self.task_id = failed.task_id or self.task_id
                if failed.code in _OF_SIGNATURES:
                    raise CommandFailure(
                        "A2ACLI_ERR_AUTH_FAILED", str(failed), hint=_SIGNATURE_HINT
                    ) from failed
                if failed.code == "SOURCE_MISMATCH":
                    raise CommandFailure(
                        "A2ACLI_ERR_AUTH_FAILED", str(failed), hint=_SOURCE_HINT
                    ) from failed
                raise failed.a2a_error from failed

        status = super().run(translated)
        return 0 if self._is_endless and status == INTERRUPTED else status

    @property
    def _reference(self) -> Any:
        """The agent: a file as its path, an interface without a scheme as its URL."""
        given = self.reference
        if not isinstance(given, str) or "://" in given:
            return given
        if Path(given).is_file():
            return Path(given)
        if not given.partition("?")[0].rstrip("/").endswith(ENDPOINT):
            return given
        authority = given.partition("/")[0]
        host = authority.rpartition(":")[0] or authority
        return f"{'http' if is_loopback(host.strip('[]')) else 'https'}://{given}"

    @asynccontextmanager
    async def client(
        self,
        transport: Literal["auto", "socket", "http"],
        *,
        agent_id: str,
        key: EnvelopeKey | None,
    ) -> AsyncIterator[EnvelopeClient]:
        """Connect to the agent."""
        settings = self.settings
        try:
            options = self.connect_options
            for name in ("binding", "version", "retries"):  # the protocol has its own
                del options[name]
            opening = envelope.connect(
                self._reference,
                agent_id=agent_id,
                key=key,
                transport=transport,
                egress=self.egress,
                **options,
            )
        except ValueError as error:
            raise UsageFailure(str(error)) from None
        async with opening as client:
            log = self.output.note if settings.verbose else self.output.debug
            log(f"using {client.connection.way}, as {client.source.agent_id}")
            yield client

    async def listen(self, client: EnvelopeClient, count: int | None) -> None:
        """Print unsolicited messages, until ``count`` have arrived."""
        self.output.note(f"listening as {client.source.agent_id}; Ctrl-C ends")
        shown = 0
        async for message in client.messages():
            self.report.message(message)
            shown += 1
            if shown == count:
                return


class EnvelopeReport:
    """Writes the answers of an agent in the chosen format."""

    def __init__(self, call: EnvelopeCall) -> None:
        self._call = call
        self._output = call.output

    def sent(self) -> None:
        """Report a notification."""
        if self._output.is_json:
            self._output.document({"sent": True})
        else:
            self._output.text.field("Status", "sent")

    def answer(self, answer: EnvelopeAnswer) -> None:
        """Report a RESPONSE, and the next command."""
        if self._output.is_json:
            self._output.document(members_of(answer.message))
        else:
            self._output.text.field("Status", answer.status)
            self._write_ids(answer)
            for result in answer.results:
                self._write_result("Result", result)
            if not answer.results and answer.status == Status.SUCCESS:
                self._output.text.field("Results", "none")
        self._write_next(answer)

    def event(self, event: EnvelopeEvent) -> None:
        """Report a message of a stream."""
        if self._output.is_json:
            self._output.document(members_of(event.message))
        else:
            number = "" if event.sequence is None else f" {event.sequence}"
            self._output.text.field(f"Event{number}", event.status)
            if event.error is not None:  # of one agent of a broadcast
                self._output.text.field("Agent", event.metadata.agent_id)
                self._output.text.field("Error", f"{event.error.code}: {event.error.message}")
            if event.status == Status.ACCEPTED or event.is_final:
                self._write_ids(event)
            for result in event.results:
                self._write_result("Result", result)
            sys.stdout.flush()
        if event.is_final:
            self._write_next(event)

    def message(self, message: Envelope) -> None:
        """Report an unsolicited message."""
        if self._output.is_json:
            self._output.document(members_of(message))
            return
        text, payload = self._output.text, message.payload
        text.field(message.message.type.capitalize(), f"from {message.source.agent_id}")
        if isinstance(payload, RequestPayload):
            text.field("Action", payload.action)
            self._write_result("Parameters", payload.parameters)
        elif isinstance(payload, ResponsePayload):
            text.field("Status", payload.status)
            for result in payload.results:
                self._write_result("Result", result)
        elif (members := msgspec.json.decode(payload)) != {}:
            self._write_result("Says", members)
        text.gap()
        sys.stdout.flush()

    def _write_ids(self, answer: EnvelopeAnswer) -> None:
        if answer.task_id:
            self._call.task_id = answer.task_id
            self._output.text.field("Task", answer.task_id)
        if answer.context_id:
            self._output.text.field("Context", answer.context_id)

    def _write_result(self, label: str, result: Any) -> None:
        if isinstance(result, dict) and result.keys() == {"text"}:
            result = result["text"]
        if isinstance(result, str):
            self._output.text.content(label, result)
        else:
            self._output.text.content(label, json_text(result))

    def _write_next(self, answer: EnvelopeAnswer) -> None:
        if answer.status not in (Status.INPUT_REQUIRED, Status.AUTH_REQUIRED):
            return
        what = "input" if answer.status == Status.INPUT_REQUIRED else "authorization"
        self._output.warn(f"task {answer.task_id} needs {what}")
        agent = self._call.settings.agent_card
        words = ["envelope", "send", "--task-id", answer.task_id, agent, self._call.action]
        reply = ["--parameters", '"<reply>"'] if answer.status == Status.INPUT_REQUIRED else []
        command = shell_words([*invocation(), *words, *reply])
        if self._output.is_json:
            self._output.note(f"next: {command}")
        else:
            self._output.text.field("Next", self._output.redact(command))


def read_signing_key(path: str) -> EnvelopeKey | None:
    """Return the key in a file. Raises ``UsageFailure``, which never quotes the key."""
    if not path:
        return None
    try:
        jwk: Any = msgspec.json.decode(_content(path, "--signing-key"))
        if not isinstance(jwk, dict):
            raise ValueError("it is not a JSON object with one key")
        key = read_key(jwk)
    except (ValueError, msgspec.DecodeError) as error:
        reason = "it is not JSON" if isinstance(error, msgspec.DecodeError) else str(error)
        raise UsageFailure(
            f"--signing-key: {path} has no key that signs messages: {reason}",
            hint="parley keys share FILE --owner ID --to PATH makes one",
        ) from None
    if key.is_public:
        raise UsageFailure(f"--signing-key: {path} has the public half of a key, which only checks")
    return key


def read_envelope_card(path: str) -> EnvelopeCard:
    """Return the envelope card in a file. Raises ``UsageFailure``."""
    try:
        return read_card(_content(path, "--register"))
    except A2AError as error:
        raise UsageFailure(f"--register: {path} is not an envelope card: {error.message}") from None


def _content(path: str, flag: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FILE)
    except OSError as error:
        raise UsageFailure(f"{flag}: {path} cannot be read: {error.strerror}") from None


def share(
    output: Output, file: str, owner: str, public: str, sender_file: str, record: Record
) -> None:
    """Add a key of a sender to a file, and give the sender its half, if the sender has none."""
    path = Path(file)
    if not owner:
        raise UsageFailure("name who signs with it: --owner ID")
    if bool(public) == bool(sender_file):
        raise UsageFailure(
            "name either the file for the sender (--to), or the file of its public key (--public)"
        )
    keys = _published(Path(public), owner) if public else [_new_secret(owner)]
    known = _read(path)
    ids = {(each.get("owner"), each.get("kid")) for each in known["keys"]}
    for key in keys:
        if (key.owner, key.id) in ids:
            raise CommandFailure(
                "PARLEY_ERR_KEY", f"{path} has a key {key.id!r} of {key.owner!r} already"
            )
    document = {**known, "keys": [*known["keys"], *map(jwk_of, keys)]}
    if sender_file:  # first: a server must not have a secret that its sender never got
        _write(Path(sender_file), jwk_of(keys[0]), creates=True)
    _write(path, document, creates=not path.exists())
    for key in keys:
        record("envelope_key.shared", key.id, {"owner": key.owner, "algorithm": key.algorithm})
    _report(output, path, keys, sender_file)


def _new_secret(owner: str) -> EnvelopeKey:
    kid, material = secrets.token_hex(8), secrets.token_bytes(SHORTEST_SECRET)
    try:
        return EnvelopeKey(id=kid, owner=owner, algorithm="HMAC-SHA256", material=material)
    except ValueError as error:
        raise UsageFailure(f"--owner: {error}") from None


def _published(path: Path, owner: str) -> list[EnvelopeKey]:
    """Return the public keys for Ed25519 in a file: a JWK, or a JWK Set."""
    try:
        content = read_object(path.read_bytes(), limit=MAX_BYTES, what=f"the key file {path}")
        listed = content.get("keys", [content])
        jwks = [each for each in listed if isinstance(each, dict) and each.get("kty") == "OKP"]
        if any("d" in each for each in jwks):
            raise CommandFailure(
                "PARLEY_ERR_KEY",
                f"{path} has private keys, which only {owner} should have",
                hint=f"the public half of {path} is what parley keys show {path} -o json prints",
            )
        keys = [read_key({**each, "owner": owner}) for each in jwks]
    except OSError as error:
        raise CommandFailure("PARLEY_ERR_KEY", f"{path}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise CommandFailure("PARLEY_ERR_KEY", f"a key of {path} cannot be used: {error}") from None
    if not keys:
        raise CommandFailure(
            "PARLEY_ERR_KEY",
            f"{path} has no key for Ed25519",
            hint="parley keys generate --alg EdDSA makes one",
        )
    return keys


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"keys": []}
    try:
        read_envelope_keys(path)
        return read_object(read_private(path, limit=MAX_BYTES), limit=MAX_BYTES, what=str(path))
    except (EnvelopeKeysInvalid, ValueError) as error:
        raise CommandFailure("PARLEY_ERR_KEY", str(error)) from None


def _write(path: Path, document: dict[str, Any], *, creates: bool) -> None:
    try:
        with replacing(path, creates=creates) as write:
            write(json.dumps(document, indent=2).encode() + b"\n")
    except FileExistsError:
        raise CommandFailure(
            "PARLEY_ERR_KEY", f"{path} exists, and its keys may be in use: it is not replaced"
        ) from None
    except (OSError, WriteUnderWay) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandFailure("PARLEY_ERR_KEY", f"{path}: {reason}") from None


def _report(output: Output, path: Path, keys: list[EnvelopeKey], sender_file: str) -> None:
    if output.is_json:
        shown = [{"kid": key.id, "owner": key.owner, "algorithm": key.algorithm} for key in keys]
        output.document({"file": str(path), "sender": sender_file or None, "keys": shown})
        return
    output.text.field("File", path)
    for key in keys:
        output.text.field("Key", f"{key.id} {key.algorithm}, of {key.owner}")
    if keys[0].algorithm != ED25519:
        output.text.field("Note", f"private: give {sender_file} to {keys[0].owner} only")
    output.text.field("Next", f"parley serve agent.py --envelope-keys {path}")
