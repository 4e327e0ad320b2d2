"""The proofs of one server, by the scheme that a configuration names."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

from parley.model.operations import AuthenticationInfo
from parley.push.proofs.api_key import ApiKeyProof
from parley.push.proofs.authorization import AuthorizationProof, BasicProof, BearerProof
from parley.push.proofs.hmac_sha256 import HmacProof
from parley.push.proofs.jwt import JwtProof
from parley.push.proofs.mutual_tls import MutualTlsProof, WebhookCertificate
from parley.push.proofs.oauth2 import ClientCredentialsProof
from parley.push.proofs.proof import Problem, WebhookProof, WrongUrl, may_be_plain
from parley.push.proofs.secrets_at_rest import WebhookSecrets
from parley.security.egress import Egress
from parley.security.signing.keys import SigningKeys


class Proofs:
    """What this server can prove itself with, and the clock of its attempts.

    ``issuer`` is its public address; without it, or without ``keys``, it signs no JWTs. Raises
    ``ValueError`` for a certificate that cannot be used. ``secret_key`` encrypts the secrets of
    stored configurations.
    """

    def __init__(
        self,
        egress: Egress,
        *,
        issuer: str = "",
        keys: SigningKeys | None = None,
        certificate: WebhookCertificate | None = None,
        secret_key: bytes | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._egress = egress
        self.clock = clock
        self.secrets = WebhookSecrets(secret_key)
        jwt = JwtProof(keys, issuer)
        self._client_credentials = ClientCredentialsProof(egress, monotonic)
        self._other = AuthorizationProof()
        self._proofs: dict[str, WebhookProof] = {
            "bearer": BearerProof(None if jwt.missing else jwt),
            "basic": BasicProof(),
            "apikey": ApiKeyProof(),
            "oauth2": self._client_credentials,
            "hmac-sha256": HmacProof(),
            "jwt": jwt,
            "mutualtls": MutualTlsProof(certificate),
        }

    def of(self, authentication: AuthenticationInfo) -> WebhookProof:
        """Return the proof of a scheme, whose name has no case."""
        return self._proofs.get(authentication.scheme.lower(), self._other)

    def problems(
        self, authentication: AuthenticationInfo, url: str, wrong_url: WrongUrl
    ) -> list[Problem]:
        """Return what is wrong with a configuration, whose ``url`` is a right one."""
        proof = self.of(authentication)
        found = list(proof.problems(authentication.credentials, url, wrong_url))
        if proof.sends_secret and authentication.credentials and not self._is_private(url):
            found.append(
                (
                    "url",
                    f"an https URL, as {authentication.scheme} sends a secret; plain http is for "
                    "hosts that the operator allows",
                )
            )
        return found

    def _is_private(self, url: str) -> bool:
        address = urlsplit(url)
        return address.scheme == "https" or may_be_plain(address.hostname or "", self._egress)

    async def close(self) -> None:
        """End the requests for tokens that are under way."""
        await self._client_credentials.close()
