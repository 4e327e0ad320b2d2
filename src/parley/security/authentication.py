"""Authentication: from the evidence of a request to its caller, before its body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from parley.model.errors import OverloadedError, UnauthenticatedError
from parley.model.service import ANONYMOUS, Caller
from parley.security.authorization import MISSING, Authorization
from parley.security.evidence import Evidence
from parley.security.failures import Failures
from parley.security.resources import SchemeResources
from parley.security.schemes.scheme import (
    CredentialsRefused,
    Proof,
    Scheme,
    Security,
    anonymous,
    caller_proved_by,
)

REFUSED = "the credentials were refused; the server's log says why"


class Authenticator:
    """Verifies the credentials of requests by the schemes of some agents.

    A request without credentials is anonymous, unless each of ``securities`` requires some. All
    credentials of the schemes must be valid that a request presents. ``resources`` are those of the
    server.
    """

    def __init__(
        self, securities: Sequence[Security], resources: SchemeResources | None = None
    ) -> None:
        self._securities = tuple(securities)
        self.resources = resources or SchemeResources()
        self._schemes = tuple(
            dict.fromkeys(scheme for each in securities for scheme in each.schemes)
        )
        self._is_open = any(each.is_open for each in securities)

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes of all agents."""
        return self._schemes

    @property
    def failures(self) -> Failures:
        """The count of refused credentials; authenticators of one server share it."""
        return self.resources.failures

    def __call__(self, scope: Mapping[str, Any]) -> Caller | Awaitable[Caller]:
        """Return the caller of a request.

        Raises ``UnauthenticatedError``, ``OverloadedError`` and ``TooManyRequestsError``.
        """
        evidence = Evidence(scope, self.resources)
        presented = [scheme for scheme in self._schemes if scheme.is_presented(evidence)]
        if not presented:
            if self._is_open:
                return ANONYMOUS
            raise UnauthenticatedError(MISSING, challenges=self.challenges(evidence))
        if self.failures.any_recent:
            self.failures.check(scope, _claims(presented, evidence))
        return self._verified(presented, evidence)

    async def _verified(self, presented: Sequence[Scheme], evidence: Evidence) -> Caller:
        proofs: dict[Scheme, Proof] = {}
        accepted: set[str] = set()
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
            proofs[scheme] = proof
        # Several schemes may read one credential: two issuers, or two agents behind one address.
        failures = [
            (scheme, failure)
            for scheme, failure in failures
            if not scheme.credential or scheme.credential not in accepted
        ]
        if failures:
            raise self._refusal(failures, evidence)
        return caller_proved_by(proofs)

    def _refusal(
        self,
        failures: Sequence[tuple[Scheme, CredentialsRefused | OverloadedError]],
        evidence: Evidence,
    ) -> UnauthenticatedError | OverloadedError:
        refusals: dict[object, tuple[Scheme, CredentialsRefused]] = {}
        for scheme, failure in failures:
            if isinstance(failure, OverloadedError):
                return failure
            # One credential is refused once, by the scheme that it is for if there is one.
            credential = scheme.credential or scheme
            known = refusals.get(credential)
            if known is None or (known[1].is_foreign and not failure.is_foreign):
                refusals[credential] = (scheme, failure)
        for scheme, refusal in refusals.values():
            claims = _claims((scheme,), evidence)
            self.failures.note(evidence.scope, claims, scheme=scheme.name, reason=refusal.reason)
        description = next((each.description for _, each in refusals.values()), "")
        challenges = self.challenges(evidence, error="invalid_token")
        return UnauthenticatedError(description or REFUSED, challenges=challenges)

    def challenges(self, evidence: Evidence | None = None, *, error: str = "") -> tuple[str, ...]:
        """Return the values of ``WWW-Authenticate`` for a request that lacks credentials."""
        found = (scheme.challenge(evidence, error=error) for scheme in self._schemes)
        return tuple(dict.fromkeys(filter(None, found)))


def authenticator_of(
    authorizations: Iterable[Authorization | None], resources: SchemeResources | None = None
) -> Authenticator | None:
    """Return what verifies the schemes of some agents, ``None`` if they have none.

    An agent without rules of its own lets everyone in.
    """
    securities: list[Security] = []
    for each in authorizations:
        if each is None or each.security is None:
            securities.append(anonymous)
        if each is not None:
            securities += each.securities
    made = Authenticator(securities, resources)
    return made if made.schemes else None


def _claims(schemes: Iterable[Scheme], evidence: Evidence) -> list[tuple[str, str]]:
    """Return the ids that credentials claim, each with the name of its scheme."""
    named = ((scheme.name, scheme.claimed(evidence)) for scheme in schemes)
    return [claim for claim in named if claim[1]]
