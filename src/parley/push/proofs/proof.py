"""The protocol of a proof: what an attempt to deliver has so that the webhook knows its sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from parley.security.egress import Egress, ForbiddenAddress
from parley.store.protocols.webhooks import PushRecord

if TYPE_CHECKING:
    import ssl

    import aiohttp

Problem = tuple[str, str]
"""A field of a configuration, and what it should be. Repeats no secret."""

WrongUrl = Callable[[str], str]
"""Returns what is wrong with an address that this server shall call, empty for a right one."""

SCHEME, CREDENTIALS = "authentication.scheme", "authentication.credentials"


class WebhookAttempt(NamedTuple):
    """One attempt to deliver a body to a webhook.

    ``id`` is that of the delivery, ``at`` the time of this attempt in seconds since 1970.
    ``task_id`` is empty for a direct reply. ``caller`` owns the configuration. ``session`` returns
    the guarded connections to a host.
    """

    push: PushRecord
    body: bytes
    id: str
    at: int
    task_id: str
    caller: str
    session: Callable[[str], aiohttp.ClientSession]

    @property
    def credentials(self) -> str:
        """The credentials of the configuration."""
        authentication = self.push.config.authentication
        return "" if authentication is None else authentication.credentials


class ProofFailed(Exception):
    """There is no proof, so nothing is sent. The message says why, and holds no secret.

    ``is_refusal``: somebody has to change something first.
    """

    def __init__(self, reason: str, *, is_refusal: bool = False) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal


class WebhookProof(Protocol):
    """One way to prove the sender. Has no state of a single delivery.

    ``sends_secret``: whoever reads a delivery could send others, so plain http is refused.
    """

    sends_secret: bool

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield what is wrong with the credentials of a configuration, and with its ``url``."""
        ...

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the headers that prove the sender. Raises ``ProofFailed``."""
        ...

    def tls(self) -> ssl.SSLContext | None:
        """Return what the connection is made with; ``None`` for the default.

        Raises ``ProofFailed``.
        """
        ...

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Note a 401. Return whether new headers may help, other than those that were sent."""
        ...


class StaticProof:
    """What most proofs share: the default connection, and no second try after a 401."""

    sends_secret = True

    def tls(self) -> ssl.SSLContext | None:
        """Return ``None``: the connection is as for any webhook."""
        return None

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Return ``False``: the same headers would be sent again."""
        return False


def may_be_plain(host: str, egress: Egress) -> bool:
    """Return whether secrets may go to a host over plain http: the operator allows this host, by
    its name or as one of its networks.

    Decided by what the URL says. A public name is never meant by "private networks".
    """
    if egress.trusts(host):
        return True
    try:
        egress.check_host(host)
    except ForbiddenAddress:
        return False
    try:
        Egress().check_host(host)
    except ForbiddenAddress:
        return True
    return False
