"""The errors of the client.

    ClientError
    ├── CardNotFound          the reference leads to no agent card
    ├── CardInvalid           the reference leads to a document that is not a card
    ├── CardNotTrusted        the card has no trusted signature (``connect(trust=...)``)
    ├── NoCommonInterface     the card has no interface that this client supports
    │   └── NoCommonVersion   the binding is supported, its protocol versions are not
    ├── OriginNotTrusted      the agent's origin may not get the credentials
    ├── NotEncrypted          the network could read the credentials
    ├── Unreachable           no connection: nothing was sent
    │   └── Untrusted         the server's certificate is not trusted
    ├── Disconnected          the connection broke: the request may have been processed
    │   └── StreamCut         a stream ended before its task and could not be resumed
    ├── Timeout               no end within the caller's time limit
    ├── RemoteTaskFailed      the task ended without success (``turn.delegate``)
    ├── ResultMissing         the agent asks or failed, so the typed result is missing
    ├── ResultMismatch        the result does not fit ``returns``
    ├── AuthenticationRequired    HTTP 401 or 403, or credentials that the agent's card requires
    │   └── TokenRefused      an issuer gives no token (``parley.client.auth``)
    ├── UnexpectedStatus      another HTTP status, without an answer of the agent
    ├── ResponseTooLarge      more bytes than the client's limit
    ├── AddressNotAllowed     a file's address is not public, and not allowed
    ├── FileLimitExceeded     a file is larger than a message, an agent or a reader allows
    ├── FileMismatch          a file's bytes differ from the announced ones
    └── ConnectionClosed      this side closed the connection

An error returned by the agent itself is an ``A2AError`` (see ``parley.model.errors``, also
for the paragraphs of the docstrings).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parley.model.errors import FieldViolation
from parley.model.tasks import Task

if TYPE_CHECKING:
    from parley.client.answer import Answer
    from parley.security.signing.cards import CardVerdict, SignatureVerdict


class ClientError(Exception):
    """A call failed without an answer of the agent.

    Catch it for all of the following errors.
    """


class CardNotFound(ClientError):
    """The reference leads to no agent card.

    Check host and path: the message lists other agents there, if the server names them.
    """


class CardInvalid(ClientError):
    """The reference leads to a document that is not an agent card.

    Show its faults with ``parley card validate``.

    ``raw`` is the document, if it is JSON.
    """

    def __init__(self, message: str, *, raw: bytes = b"") -> None:
        self.raw = raw
        super().__init__(message)


class CardNotTrusted(ClientError):
    """The card has no signature by a trusted key, which the caller requires. It is not used.

    Trust the signer's key (``trust=CardTrust(...)``), or call without ``trust``.

    The message lists the signatures with reasons. ``verdict`` has the same as values; it is
    ``None`` for an ambiguous card.
    """

    def __init__(self, message: str, *, verdict: CardVerdict | None = None) -> None:
        self.verdict = verdict
        super().__init__(message)

    @property
    def signatures(self) -> tuple[SignatureVerdict, ...]:
        """The signatures of the card, each with the reason why it is not trusted."""
        return self.verdict.signatures if self.verdict is not None else ()


class NoCommonInterface(ClientError):
    """The card has no binding and version that this client supports.

    Leave ``binding=`` out; for gRPC alone, install ``parley-a2a[grpc]``.
    """


class NoCommonVersion(NoCommonInterface):
    """The card has a supported binding, but only in unsupported protocol versions.

    Request one of ``versions`` (``version=`` of ``connect``), if there are any.
    """

    def __init__(self, message: str, *, versions: tuple[str, ...] = ()) -> None:
        self.versions = versions
        super().__init__(message)


class OriginNotTrusted(ClientError):
    """All interfaces of the card are at origins that may not get the caller's credentials.

    Pass ``origins`` to ``connect(trust_origins=...)`` if they belong to the agent.

    None of them was called. ``reason`` is the message without that remedy.
    """

    def __init__(self, reason: str, *, origins: tuple[str, ...] = ()) -> None:
        self.reason = reason
        self.origins = origins
        remedy = f". To allow it: connect(..., trust_origins={list(origins)!r})"
        super().__init__(reason + remedy if origins else reason)


class NotEncrypted(ClientError):
    """Credentials would go to another machine without encryption. Nothing was sent.

    Call an ``https`` address; ``insecure=True`` only in a network that you trust.
    """


class Unreachable(ClientError):
    """No connection to the agent (name, network or TLS). Nothing was sent.

    Check the address, the network and the server; another attempt repeats nothing.
    """


class Untrusted(Unreachable):
    """The server's certificate is not trusted. Nothing was sent.

    Trust the authority that issued it: ``tls=Tls(ca=...)``.
    """


class Disconnected(ClientError):
    """The connection broke before the answer was complete; the request may have been processed.

    Look for the task (``list``) before you send again.
    """


class StreamCut(Disconnected):
    """A stream ended before its task did, and could not be resumed.

    Follow the task with ``subscribe(task_id, after=seq)``, or read it with ``get``.

    ``task_id`` is set if the stream named the task; ``seq`` is the number of the last event, if the
    agent numbers them. The task continues without the stream.
    """

    def __init__(self, message: str, *, task_id: str = "", seq: int | None = None) -> None:
        self.task_id = task_id
        self.seq = seq
        super().__init__(message)


class Timeout(ClientError):
    """The operation did not end within the caller's time limit.

    Read the task later with ``get`` or ``wait``, or allow more time.

    ``task_id`` is set if it is known; the task continues.
    """

    def __init__(self, message: str, *, task_id: str = "") -> None:
        self.task_id = task_id
        super().__init__(message)


class RemoteTaskFailed(ClientError):
    """The task of another agent ended without success: ``task`` has its state and message.

    Read ``task.status``; begin a new task if its reason is gone.
    """

    def __init__(self, message: str, *, task: Task) -> None:
        self.task = task
        super().__init__(message)


class ResultMissing(ClientError):
    """The answer has no result of the type that ``returns`` names: the agent asks, or failed.

    Look at ``answer.question``, ``answer.state`` and ``answer.text`` first.
    """

    def __init__(self, message: str, *, answer: Answer[Any]) -> None:
        self.answer = answer
        super().__init__(message)


class ResultMismatch(ClientError):
    """The result, or its schema on the agent's card, does not fit the type in ``returns``.

    Correct the type, or leave ``returns`` out and read ``answer.data``.

    ``fields`` has the wrong fields with what was expected there.
    """

    def __init__(self, message: str, *, fields: tuple[FieldViolation, ...]) -> None:
        self.fields = fields
        super().__init__(message)


class AuthenticationRequired(ClientError):
    """The server requires credentials (401), or rejects the sent ones (403).

    Give credentials, or others: ``auth=`` of ``connect``, ``parley auth login``.

    ``challenge`` is its ``WWW-Authenticate`` header.
    """

    def __init__(self, message: str, *, status: int, challenge: str = "") -> None:
        self.status = status
        self.challenge = challenge
        super().__init__(message)


class UnexpectedStatus(ClientError):
    """The server returned an HTTP status that is not an answer of the agent.

    Check the address, and the proxy in front of the agent.

    ``retry_after`` is in seconds, if the server gave one.
    """

    def __init__(self, message: str, *, status: int, retry_after: float | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        super().__init__(message)


class ResponseTooLarge(ClientError):
    """The answer is larger than the client's limit.

    Ask for less: fewer tasks in a page, no history, files by reference.
    """


class AddressNotAllowed(ClientError):
    """An address in a message, a card or a redirect is not public, and not allowed.

    Allow the place that the message names, if you trust it.

    Nothing was sent to it.
    """


class FileLimitExceeded(ClientError):
    """A file is larger than a message, the agent's file transfer or a reader allows.

    Raise ``limit=``, or upload the file instead of sending it in a message.
    """


class FileMismatch(ClientError):
    """The bytes of a file differ from the announced ones, or it changed during the transfer.

    Transfer the file again.
    """


class ConnectionClosed(ClientError):
    """The connection to the agent was closed on this side.

    Connect again.
    """


def timeout_error(timeout: float | None, task_id: str) -> Timeout:
    """Return the error for a task that did not end, or an answer that did not arrive, in time."""
    what = f"task {task_id} did not end" if task_id else "there was no answer"
    return Timeout(f"{what} within {timeout:g} s" if timeout else what, task_id=task_id)
