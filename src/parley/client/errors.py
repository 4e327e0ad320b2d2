"""What can go wrong on the caller's side of a call.

    ClientError
    ├── CardNotFound          the reference leads to no agent card
    ├── CardInvalid           what was found is not an agent card
    ├── NoCommonInterface     the card offers nothing that this client speaks
    │   └── NoCommonVersion   it offers a binding that is spoken, in other protocol versions
    ├── OriginNotTrusted      the agent is elsewhere than the credentials were given for
    ├── Unreachable           no connection: nothing was sent
    │   └── Untrusted         the server's certificate does not hold
    ├── Disconnected          the connection broke: the request may have been carried out
    │   └── StreamCut         a stream ended before its task and could not be taken up again
    ├── Timeout               no end within the time that the caller gave
    ├── AuthenticationRequired    HTTP 401 or 403
    ├── UnexpectedStatus      another HTTP status, without an answer of the agent in it
    ├── ResponseTooLarge      more bytes than the client is willing to hold
    └── ConnectionClosed      the connection object was closed

What the agent itself refuses is an ``A2AError`` (see ``parley.model.errors``).
"""

from __future__ import annotations


class ClientError(Exception):
    """A call could not be made, or its answer could not be had."""


class CardNotFound(ClientError):
    """The reference leads to no agent card."""


class CardInvalid(ClientError):
    """What was found is not an agent card."""


class NoCommonInterface(ClientError):
    """The card offers no binding and version that this client speaks."""


class NoCommonVersion(NoCommonInterface):
    """The card offers a binding that this client speaks, but in other protocol versions only."""


class OriginNotTrusted(ClientError):
    """The card names the agent at origins that the caller's credentials were not given for.

    None of them was called. ``origins`` are those, as ``connect(trust_origins=...)`` takes them,
    and ``reason`` is the message without this way out.
    """

    def __init__(self, reason: str, *, origins: tuple[str, ...] = ()) -> None:
        self.reason = reason
        self.origins = origins
        way_out = f". To allow it: connect(..., trust_origins={list(origins)!r})"
        super().__init__(reason + way_out if origins else reason)


class Unreachable(ClientError):
    """The agent could not be connected to (name, network or TLS). Nothing was sent."""


class Untrusted(Unreachable):
    """The server's certificate is not trusted. Nothing was sent."""


class Disconnected(ClientError):
    """The connection broke before the answer was complete; the request may have been done."""


class StreamCut(Disconnected):
    """A stream ended before its task did, and could not be taken up again.

    ``task_id`` is that of the task, if the stream had named it; ``seq`` is the number of the last
    event that arrived, where the agent numbers them. The task goes on without the stream.
    """

    def __init__(self, message: str, *, task_id: str = "", seq: int | None = None) -> None:
        self.task_id = task_id
        self.seq = seq
        super().__init__(message)


class Timeout(ClientError):
    """There was no end within the time that the caller gave.

    ``task_id`` is that of the task, if it is known; the task goes on.
    """

    def __init__(self, message: str, *, task_id: str = "") -> None:
        self.task_id = task_id
        super().__init__(message)


class AuthenticationRequired(ClientError):
    """The server wants credentials (401), or refuses those that were sent (403).

    ``challenge`` is what it says about them (``WWW-Authenticate``).
    """

    def __init__(self, message: str, *, status: int, challenge: str = "") -> None:
        self.status = status
        self.challenge = challenge
        super().__init__(message)


class UnexpectedStatus(ClientError):
    """The server answered with an HTTP status and nothing that the agent said.

    ``retry_after`` is in seconds, where the server gave it.
    """

    def __init__(self, message: str, *, status: int, retry_after: float | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        super().__init__(message)


class ResponseTooLarge(ClientError):
    """The answer is larger than the client is willing to hold."""


class ConnectionClosed(ClientError):
    """The connection to the agent was closed by this side; open a new one."""
