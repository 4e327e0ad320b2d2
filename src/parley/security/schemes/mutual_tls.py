"""Mutual TLS: callers authenticate with a certificate (specification §4.5.6)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from parley.model.bounded import Bounded
from parley.model.cards import MutualTlsSecurityScheme, SecurityScheme
from parley.model.ids import may_be_name
from parley.model.service import Caller
from parley.security.certificates import (
    CLIENT_CERT,
    XFCC,
    CertificateInvalid,
    Identity,
    forwarded_identity,
    identity_in_pem,
    pinned,
)
from parley.security.evidence import Evidence
from parley.security.networks import is_among, networks
from parley.security.schemes.scheme import (
    CredentialsRefused,
    Proof,
    Scheme,
    SchemeResources,
    challenge,
    checked_name,
)

log = logging.getLogger("parley.security")

_HEADERS = {name.lower(): name for name in (XFCC, CLIENT_CERT)}
_MAX_CACHED = 256

ISSUER = "mtls"
"""The issuer of callers if the proxy does not say who signed their certificates."""


class MutualTls(Scheme):
    """A client certificate that one of the server's authorities signed (``tls_client_ca``).

    ``identities`` are the accepted identities, all by default: URIs such as SPIFFE ids, DNS names,
    subjects (RFC 4514), or SHA-256 fingerprints of certificates. A mapping gives scopes to each:
    ``{"spiffe://example.org/billing": ["pay"]}``.

    Behind a proxy that terminates TLS, ``proxy_header`` is the header with the certificate:
    ``X-Forwarded-Client-Cert`` or ``Client-Cert`` (RFC 9440). It is read only on connections from
    ``trusted_proxies``; a request with the header from another address is rejected. The proxy must
    verify certificates, and must remove the header from incoming requests.

    The caller id is the first URI of the certificate, else its first DNS name, else its subject.
    """

    def __init__(
        self,
        identities: Iterable[str] | Mapping[str, Iterable[str]] = (),
        *,
        proxy_header: str = "",
        trusted_proxies: Iterable[str] = (),
        name: str = "mtls",
        description: str = "",
    ) -> None:
        self.name = checked_name(name)
        self._description = description
        self._pinned = _scopes_by_identity(identities)
        if proxy_header and proxy_header.lower() not in _HEADERS:
            raise ValueError(
                f"MutualTls reads {' or '.join(_HEADERS.values())}, not {proxy_header!r}"
            )
        self._header = _HEADERS.get(proxy_header.lower(), "")
        self._raw_header = self._header.lower().encode()
        self._proxies = networks(trusted_proxies, what="MutualTls(trusted_proxies=...)")
        if self._header and not self._proxies:
            raise ValueError(
                f"anyone can send {self._header}: name the trusted proxies, such as "
                'MutualTls(..., trusted_proxies=["10.0.0.0/8"])'
            )
        if self._proxies and not self._header:
            raise ValueError(
                f"trusted_proxies forward certificates in a header: give proxy_header={XFCC!r} "
                f"or {CLIENT_CERT!r}"
            )
        self._now = SchemeResources().now
        self._identities: Bounded[str, Identity] = Bounded(_MAX_CACHED)

    def __repr__(self) -> str:
        return f"MutualTls({self.name!r})"

    @property
    def reads_header(self) -> bool:
        """True if certificates may arrive in a proxy's header."""
        return bool(self._header)

    async def start(self, resources: SchemeResources) -> None:
        """Use the server's clock."""
        self._now = resources.now

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            mtls_security_scheme=MutualTlsSecurityScheme(description=self._description)
        )

    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has a certificate."""
        if self._header and evidence.headers(self._raw_header):
            return True
        return bool(evidence.certificate_chain) and not self._is_from_proxy(evidence)

    def verify(self, evidence: Evidence) -> Proof:
        """Return the certificate's proof. Raises ``CredentialsRefused``."""
        identity = self._identity(evidence)
        if not identity.id or not may_be_name(identity.id) or not may_be_name(identity.issuer):
            raise CredentialsRefused(
                "a certificate without a name",
                "the certificate has no identity: it has neither a URI, a DNS name nor a subject",
            )
        self._check_dates(identity)
        scopes = self._scopes(identity)
        caller = Caller(
            id=identity.id,
            issuer=identity.issuer or ISSUER,
            client=identity.id,
            authenticated=True,
            claims=_claims(identity),
        )
        return Proof(caller, scopes)

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return a challenge that names mutual TLS. No challenge for it is registered."""
        return challenge("MutualTLS", error=error, scope=" ".join(scopes))

    def _is_from_proxy(self, evidence: Evidence) -> bool:
        return bool(self._header) and is_among(evidence.connection_address, self._proxies)

    def _identity(self, evidence: Evidence) -> Identity:
        """Return the identity in the certificate. Raises ``CredentialsRefused``."""
        values = evidence.headers(self._raw_header) if self._header else []
        try:
            if self._is_from_proxy(evidence):
                return forwarded_identity(self._header, values)
            if values:
                address = evidence.connection_address
                log.warning(
                    "%s from %s, which is not a trusted proxy", self._header, address or "?"
                )
                raise CredentialsRefused(
                    f"{self._header} from an address that is not a trusted proxy",
                    f"the header {self._header} is not accepted from here",
                )
            if evidence.certificate_error:
                raise CredentialsRefused("a certificate that the handshake did not verify")
            return self._cached(evidence.certificate_chain[0])
        except CertificateInvalid as error:
            raise CredentialsRefused(
                f"an unreadable certificate: {error}", "the client certificate cannot be read"
            ) from None

    def _cached(self, certificate: str) -> Identity:
        """Return the identity of a certificate, cached: a connection presents the same one each
        time."""
        identity = self._identities.use(certificate)
        if identity is None:
            identity = self._identities[certificate] = identity_in_pem(certificate)
        return identity

    def _check_dates(self, identity: Identity) -> None:
        """Reject a certificate that is not valid now: a connection may outlive its certificate."""
        now = self._now()
        if identity.not_after is not None and identity.not_after < now:
            raise CredentialsRefused("an expired certificate", "the client certificate has expired")
        if identity.not_before is not None and identity.not_before > now:
            raise CredentialsRefused(
                "a certificate that is not valid yet", "the client certificate is not valid yet"
            )

    def _scopes(self, identity: Identity) -> frozenset[str]:
        if not self._pinned:
            return frozenset()
        found = [self._pinned[name] for name in identity.names if name in self._pinned]
        if not found:
            raise CredentialsRefused(
                f"a certificate of {identity.id!r}, which is not among the identities",
                "the client certificate is not accepted here",
            )
        return frozenset().union(*found)


def _scopes_by_identity(
    identities: Iterable[str] | Mapping[str, Iterable[str]],
) -> dict[str, frozenset[str]]:
    """Return the scopes of each accepted identity. Raises ``ValueError``."""
    if isinstance(identities, str):
        identities = (identities,)
    if not isinstance(identities, Mapping):
        return {pinned(each): frozenset() for each in identities}
    found: dict[str, frozenset[str]] = {}
    for name, scopes in identities.items():
        if isinstance(scopes, str):
            raise ValueError(f"the scopes of {name!r} are a list, such as [{scopes!r}]")
        found[pinned(name)] = frozenset(scopes)
    return found


def _claims(identity: Identity) -> dict[str, object]:
    """Return the names of a certificate as claims of its caller."""
    claims = {
        "subject": identity.subject,
        "fingerprint": identity.fingerprint,
        "uris": list(identity.uris),
        "dns": list(identity.dns),
    }
    return {name: value for name, value in claims.items() if value}
