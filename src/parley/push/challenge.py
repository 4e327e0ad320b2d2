"""The challenge of a webhook: its receiver confirms that it wants notifications, before it gets any
(``docs/extensions/push-delivery.md``).
"""

from __future__ import annotations

import hmac
import json
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from hashlib import sha256

from parley.push.http_sender import DeliveryFailure, HttpSender, answer_status
from parley.push.proofs.proof import ProofFailed
from parley.store.protocols.webhooks import PushRecord

CHALLENGE_HEADER = "A2A-Webhook-Challenge"
CHALLENGE_VERSION = "v1"
PREFIX = "parley-webhook-challenge:v1:"

LONGEST_RESPONSE = 4096
"""How many bytes of an answer are read."""

CONFIRMED_KEPT = 10_000
"""How many receivers that confirmed are kept in memory; each webhook keeps its own in the store."""


def response_to(challenge: str, token: str) -> str:
    """Return the response to a challenge by the receiver of a token, which may be empty."""
    digest = hmac.new(token.encode(), f"{PREFIX}{challenge}".encode(), sha256).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


class Challenges:
    """Asks receivers for their confirmation: once for each owner, URL and token."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self._confirmed: OrderedDict[bytes, None] = OrderedDict()

    def is_confirmed(self, caller: str, push: PushRecord) -> bool:
        """Return whether a caller's webhook needs no challenge."""
        key = _key(caller, push)
        if push.confirmed:
            self._keep(key)
        return key in self._confirmed

    async def ask(self, caller: str, push: PushRecord) -> DeliveryFailure | None:
        """Challenge a receiver. Return ``None`` once it has confirmed."""
        try:
            token = self._sender.opened(push).config.token
        except ProofFailed as error:
            return DeliveryFailure(str(error), is_refusal=error.is_refusal)
        challenge = secrets.token_urlsafe(32)
        headers = {"Content-Type": "application/json", CHALLENGE_HEADER: CHALLENGE_VERSION}
        body = json.dumps({"challenge": challenge}).encode()
        answer = await self._sender.ask(push, headers, body, LONGEST_RESPONSE)
        if isinstance(answer, DeliveryFailure):
            return answer._replace(reason=f"challenge not answered: {answer.reason}")
        answer_status.set(answer.status)
        given = _response_in(answer.body) if answer.status == 200 else None
        if given is None:
            what = f"it answers with HTTP {answer.status}"
            if answer.status == 200:
                what = 'the answer is not {"response": "..."}'
        elif hmac.compare_digest(given, response_to(challenge, token).encode()):
            self._keep(_key(caller, push))
            return None
        else:
            what = "the response is wrong: it is not made with the configuration's token"
        reason = f"challenge not answered: {what}"
        is_refusal = answer.status < 500 and answer.status not in (408, 425, 429)
        return DeliveryFailure(reason, is_refusal=is_refusal, status=answer.status)

    def _keep(self, key: bytes) -> None:
        self._confirmed[key] = None
        self._confirmed.move_to_end(key)
        if len(self._confirmed) > CONFIRMED_KEPT:
            self._confirmed.popitem(last=False)


def _key(caller: str, push: PushRecord) -> bytes:
    """Return who confirmed what, without the token.

    Other addresses of an origin may be another party's: they are asked again.
    """
    config = push.config
    return sha256(json.dumps([caller, config.url, config.token]).encode()).digest()


def _response_in(body: bytes) -> bytes | None:
    """Return the response in an answer, ``None`` if there is none."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return None
    response = given.get("response") if isinstance(given, dict) else None
    return response.encode(errors="replace") if isinstance(response, str) else None
