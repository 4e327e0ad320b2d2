"""The errors of the client.

    ClientError
    ├── CardNotFound          the reference leads to no agent card
    ├── CardInvalid           the reference leads to something else
    ├── CardNotTrusted        the card has no trusted signature (``connect(trust=...)``)
    ├── NoCommonInterface     the card has no interface that this client supports
    │   └── NoCommonVersion   the binding is supported, its protocol versions are not
    ├── OriginNotTrusted      the agent's origin may not have the credentials
    ├── NotEncrypted          the network could read the credentials
    ├── Unreachable           no connection: nothing was sent
    │   └── Untrusted         the server's certificate is not trusted
    ├── Disconnected          the connection broke: the request may have been processed
    │   └── StreamCut         a stream ended before its task and could not be resumed
    ├── Timeout               no end within the caller's time limit
    ├── RemoteTaskFailed      the task ended without success (``turn.delegate``)
    ├── AuthenticationRequired    HTTP 401 or 403, or credentials that the agent's card requires
    │   └── TokenRefused      an issuer gives no token (``parley.client.auth``)
    ├── UnexpectedStatus      another HTTP status, without an answer of the agent
    ├── ResponseTooLarge      more bytes than the client's limit
    ├── AddressNotAllowed     a file's address is not public, and not allowed
    ├── FileLimitExceeded     a file is larger than a message, an agent or a reader allows
    ├── FileMismatch          a file's bytes are not those that were announced
    └── ConnectionClosed      this side closed the connection

A refusal of the agent itself is an ``A2AError`` (see ``parley.model.errors``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.tasks import Task

if TYPE_CHECKING:
    from parley.security.signing.cards import CardVerdict, SignatureVerdict


class ClientError(Exception):
    """A call failed without an answer of the agent."""


class CardNotFound(ClientError):
    """The reference leads to no agent card."""


class CardInvalid(ClientError):
    """The reference leads to something that is not an agent card.

    ``raw`` is what was found, if it is JSON.
    """

    def __init__(self, message: str, *, raw: bytes = b"") -> None:
        self.raw = raw
        super().__init__(message)


class CardNotTrusted(ClientError):
    """The card has no signature of a trusted key, and the caller requires one. It is not used.

    The message has each signature, and why it does not count. ``verdict`` has the same as values;
    it is ``None`` for a card that has no single reading.
    """

    def __init__(self, message: str, *, verdict: CardVerdict | None = None) -> None:
        self.verdict = verdict
        super().__init__(message)

    @property
    def signatures(self) -> tuple[SignatureVerdict, ...]:
        """The signatures of the card, each with the reason why it is not trusted."""
        return self.verdict.signatures if self.verdict is not None else ()


class NoCommonInterface(ClientError):
    """The card has no binding and version that this client supports."""


class NoCommonVersion(NoCommonInterface):
    """The card has a binding that this client supports, but only in other protocol versions.

    ``versions`` are those that could be asked for instead.
    """

    def __init__(self, message: str, *, versions: tuple[str, ...] = ()) -> None:
        self.versions = versions
        super().__init__(message)


class OriginNotTrusted(ClientError):
    """The card has the agent only at origins that may not have the caller's credentials.

    None of them was called. ``origins`` are these, for ``connect(trust_origins=...)``. ``reason``
    is the message without that remedy.
    """

    def __init__(self, reason: str, *, origins: tuple[str, ...] = ()) -> None:
        self.reason = reason
        self.origins = origins
        remedy = f". To allow it: connect(..., trust_origins={list(origins)!r})"
        super().__init__(reason + remedy if origins else reason)


class NotEncrypted(ClientError):
    """Credentials would go to another machine without encryption. Nothing was sent."""


class Unreachable(ClientError):
    """No connection to the agent (name, network or TLS). Nothing was sent."""


class Untrusted(Unreachable):
    """The server's certificate is not trusted. Nothing was sent."""


class Disconnected(ClientError):
    """The connection broke before the answer was complete; the request may have been processed."""


class StreamCut(Disconnected):
    """A stream ended before its task did, and could not be resumed.

    ``task_id`` is the task's, if the stream named it; ``seq`` is the number of the last event, if
    the agent numbers them. The task continues without the stream.
    """

    def __init__(self, message: str, *, task_id: str = "", seq: int | None = None) -> None:
        self.task_id = task_id
        self.seq = seq
        super().__init__(message)


class Timeout(ClientError):
    """There was no end within the caller's time limit.

    ``task_id`` is the task's, if it is known; the task continues.
    """

    def __init__(self, message: str, *, task_id: str = "") -> None:
        self.task_id = task_id
        super().__init__(message)


class RemoteTaskFailed(ClientError):
    """The task of another agent ended without success: ``task`` says in which state, and why."""

    def __init__(self, message: str, *, task: Task) -> None:
        self.task = task
        super().__init__(message)


class AuthenticationRequired(ClientError):
    """The server requires credentials (401), or refuses those sent (403).

    ``challenge`` is its ``WWW-Authenticate`` header.
    """

    def __init__(self, message: str, *, status: int, challenge: str = "") -> None:
        self.status = status
        self.challenge = challenge
        super().__init__(message)


class UnexpectedStatus(ClientError):
    """The server answered with an HTTP status, without an answer of the agent.

    ``retry_after`` is in seconds, if the server gave one.
    """

    def __init__(self, message: str, *, status: int, retry_after: float | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        super().__init__(message)


class ResponseTooLarge(ClientError):
    """The answer is larger than the client's limit."""


class AddressNotAllowed(ClientError):
    """An address in a message, a card or a redirect is not public, and not allowed.

    Nothing was sent to it.
    """


class FileLimitExceeded(ClientError):
    """A file is larger than a message, the agent's file transfer or a reader allows."""


class FileMismatch(ClientError):
    """The bytes of a file are not those that were announced, or it changed during the transfer."""


class ConnectionClosed(ClientError):
    """The connection to the agent was closed on this side; open a new one."""


def timeout_error(timeout: float | None, task_id: str) -> Timeout:
    """Return the error for a task that did not end, or an answer that did not come, in time."""
    what = f"task {task_id} did not end" if task_id else "there was no answer"
    return Timeout(f"{what} within {timeout:g} s" if timeout else what, task_id=task_id)
