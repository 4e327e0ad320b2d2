"""An access token that the server obtains for the webhook (RFC 6749 §4.4)."""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

import msgspec

from parley.push.proofs.authorization import AUTHORIZATION, as_configured
from parley.push.proofs.client_token import METHODS, ClientToken, TokenRequest
from parley.push.proofs.proof import (
    CREDENTIALS,
    Problem,
    ProofFailed,
    StaticProof,
    WebhookAttempt,
    WrongUrl,
    may_be_plain,
)
from parley.security.egress import Egress

MAX_TOKENS = 4096
"""How many access tokens are kept; the one unused for longest makes room."""

MAX_TOKENS_PER_CALLER = 256

_TEXT = re.compile(r"[\x20-\x7e]+")


class ClientCredentialsProof(StaticProof):
    """``Authorization: Bearer <access token>``. A token is used for one caller's deliveries only.

    Belongs to the event loop that uses it first.
    """

    def __init__(self, egress: Egress, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._egress = egress
        self._monotonic = monotonic
        self._tokens: dict[str, OrderedDict[bytes, ClientToken]] = {}

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield what is wrong with a request for a token, member by member."""
        try:
            asked = msgspec.json.decode(credentials or "null", type=dict[str, object])
        except (msgspec.DecodeError, ValueError, RecursionError):
            yield (
                CREDENTIALS,
                'a JSON object with "tokenUrl", "clientId" and "clientSecret", and perhaps '
                '"scope", "audience", "resource" and "authMethod"',
            )
            return
        for name in ("tokenUrl", "clientId", "clientSecret"):
            if name not in asked or asked[name] == "":
                yield f"{CREDENTIALS}.{name}", "a text"
        for name, value in asked.items():
            if not value and isinstance(value, str) and name != "authMethod":
                continue  # a required one was named above
            if name not in TokenRequest.__struct_encode_fields__:
                known = ", ".join(TokenRequest.__struct_encode_fields__)
                yield CREDENTIALS, f"no other members than {known}"
            elif not isinstance(value, str) or not _TEXT.fullmatch(value):
                yield f"{CREDENTIALS}.{name}", "a text of printable ASCII characters"
            elif name == "authMethod" and value not in METHODS:
                yield f"{CREDENTIALS}.{name}", " or ".join(METHODS)
            elif name == "tokenUrl" and (problem := self._wrong_endpoint(str(value), wrong_url)):
                yield f"{CREDENTIALS}.{name}", problem

    def _wrong_endpoint(self, url: str, wrong_url: WrongUrl) -> str:
        if problem := wrong_url(url):
            return problem
        if "#" in url:
            return "a URL without a fragment"
        if not self._is_private(url):
            return "an https URL: the client's secret goes there"
        return ""

    def _is_private(self, url: str) -> bool:
        """Return whether a secret may go to an address."""
        address = urlsplit(url)
        return address.scheme == "https" or may_be_plain(address.hostname or "", self._egress)

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return a token, from the endpoint if none is at hand. Raises ``ProofFailed``."""
        if not attempt.credentials.startswith("{"):
            return as_configured(attempt)  # a token, from before the server obtained them
        token = self._token(attempt)
        return {AUTHORIZATION: f"Bearer {await token.get(attempt.session)}"}

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Drop the token that was refused. Return whether another may be had at once."""
        if not attempt.credentials.startswith("{"):
            return False
        self._token(attempt).drop(sent.get(AUTHORIZATION, "").removeprefix("Bearer "))
        return True

    async def close(self) -> None:
        """End the requests that are under way."""
        tokens, self._tokens = self._tokens, {}
        for each in tokens.values():
            for token in each.values():
                await token.close()

    def _token(self, attempt: WebhookAttempt) -> ClientToken:
        """Return the token of a caller's credentials. Raises ``ProofFailed``."""
        key = hashlib.sha256(attempt.credentials.encode()).digest()
        tokens = self._tokens.get(attempt.caller)
        found = None if tokens is None else tokens.get(key)
        if found is None:
            try:
                asked = msgspec.json.decode(attempt.credentials, type=TokenRequest)
            except (msgspec.DecodeError, ValueError, RecursionError):
                raise ProofFailed("its configuration does not say how to get a token") from None
            if not self._is_private(asked.token_url):
                raise ProofFailed("its token endpoint is not at an https address")
            found = ClientToken(asked, self._monotonic)
            self._make_room(attempt.caller)
        tokens = self._tokens.setdefault(attempt.caller, OrderedDict())
        tokens[key] = found
        tokens.move_to_end(key)
        return found

    def _make_room(self, caller: str) -> None:
        """Forget the token that its caller did not use for longest."""
        if len(self._tokens.get(caller, ())) < MAX_TOKENS_PER_CALLER:
            if sum(map(len, self._tokens.values())) < MAX_TOKENS:
                return
            caller = max(self._tokens, key=lambda each: len(self._tokens[each]))
        self._tokens[caller].popitem(last=False)
        if not self._tokens[caller]:
            del self._tokens[caller]
