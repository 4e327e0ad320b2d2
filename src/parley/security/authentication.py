"""Authentication: from the evidence of a request to its caller, before its body is read."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from parley.model.errors import OverloadedError, UnauthenticatedError
from parley.model.service import ANONYMOUS, Caller
from parley.security.authorization import MISSING, Authorization
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import CredentialsRefused, Proof, Scheme, Security, anonymous

log = logging.getLogger("parley.security")

REFUSED = "the credentials were refused; the server's log says why"


class Authenticator:
    """Verifies the credentials of requests by the schemes of some agents.

    A request without credentials is anonymous, unless each of ``securities`` requires some. All
    credentials of the schemes must be valid that a request presents.
    """

    def __init__(self, securities: Sequence[Security]) -> None:
        self._securities = tuple(securities)
        self._schemes = tuple(
            dict.fromkeys(scheme for each in securities for scheme in each.schemes)
        )
        self._is_open = any(each.is_open for each in securities)

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes of all agents."""
        return self._schemes

    def __call__(self, scope: Mapping[str, Any]) -> Caller | Awaitable[Caller]:
        """Return the caller of a request. Raises ``UnauthenticatedError``, ``OverloadedError``."""
        evidence = Evidence(scope)
        presented = [scheme for scheme in self._schemes if scheme.is_presented(evidence)]
        if not presented:
            if self._is_open:
                return ANONYMOUS
            raise UnauthenticatedError(MISSING, challenges=self.challenges(evidence))
        return self._verified(presented, evidence)

    async def _verified(self, presented: Sequence[Scheme], evidence: Evidence) -> Caller:
        caller, granted, accepted = ANONYMOUS, {}, set()
        failures: list[tuple[Scheme, CredentialsRefused | OverloadedError]] = []
        for scheme in presented:
            try:
                proof = scheme.verify(evidence)
                if not isinstance(proof, Proof):
                    proof = await proof
            except (CredentialsRefused, OverloadedError) as failure:
                failures.append((scheme, failure))
                continue
            accepted.add(scheme.credential)
            granted[scheme] = proof.scopes
            caller = _merged(caller, proof.caller)
        # Several schemes may read one credential: two issuers, or two agents behind one address.
        failures = [
            (scheme, failure)
            for scheme, failure in failures
            if not scheme.credential or scheme.credential not in accepted
        ]
        if failures:
            raise self._refusal(failures, evidence)
        return replace(caller, granted=granted, scopes=frozenset().union(*granted.values()))

    def _refusal(
        self,
        failures: Sequence[tuple[Scheme, CredentialsRefused | OverloadedError]],
        evidence: Evidence,
    ) -> UnauthenticatedError | OverloadedError:
        description = ""
        for scheme, failure in failures:
            if isinstance(failure, OverloadedError):
                return failure
            log.info("credentials refused: %s (%s)", failure.reason, scheme.name)
            description = description or failure.description
        challenges = self.challenges(evidence, error="invalid_token")
        return UnauthenticatedError(description or REFUSED, challenges=challenges)

    def challenges(self, evidence: Evidence | None = None, *, error: str = "") -> tuple[str, ...]:
        """Return the values of ``WWW-Authenticate`` for a request that lacks credentials."""
        found = (scheme.challenge(evidence, error=error) for scheme in self._schemes)
        return tuple(dict.fromkeys(filter(None, found)))


def authenticator_of(authorizations: Iterable[Authorization | None]) -> Authenticator | None:
    """Return what verifies the schemes of some agents, ``None`` if they have none.

    An agent without rules of its own lets everyone in.
    """
    securities: list[Security] = []
    for each in authorizations:
        if each is None or each.security is None:
            securities.append(anonymous)
        if each is not None:
            securities += each.securities
    made = Authenticator(securities)
    return made if made.schemes else None


def _merged(first: Caller, second: Caller) -> Caller:
    """Return the caller that two schemes prove together: the first is who, the second adds."""
    if first is ANONYMOUS:
        return second
    if first.client:
        return first
    return replace(first, client=second.client)
