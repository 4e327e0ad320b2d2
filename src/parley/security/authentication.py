"""Authentication: derive the caller of a request from its evidence, before its body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from parley.model.errors import OverloadedError, UnauthenticatedError
from parley.model.service import ANONYMOUS, Caller
from parley.security.authorization import MISSING, Authorization
from parley.security.evidence import Evidence, SchemeResources
from parley.security.failures import Failures
from parley.security.schemes.scheme import (
    CredentialsRefused,
    Proof,
    Scheme,
    Security,
    anonymous,
    caller_proved_by,
)

_Verdicts = dict[Scheme, Proof | CredentialsRefused | OverloadedError]

REFUSED = "the credentials were rejected; the server's log says why"


class Authenticator:
    """Verifies the credentials of requests by the schemes of some agents.

    A request without credentials is anonymous, unless every requirement in ``securities`` needs
    credentials. All credentials that a request presents to these schemes must be valid.
    ``resources`` are the resources of the server.
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
        """The counter of rejected credentials, which all authenticators of a server share."""
        return self.resources.failures

    def __call__(self, scope: Mapping[str, Any]) -> Caller | Awaitable[Caller]:
        """Return the caller of a request, without waiting if no scheme needs I/O.

        Raises ``UnauthenticatedError``, ``OverloadedError`` and ``TooManyRequestsError``.
        """
        evidence = Evidence(scope, self.resources)
        presented = [scheme for scheme in self._schemes if scheme.is_presented(evidence)]
        if not presented:
            if self._is_open:
                return ANONYMOUS
            raise UnauthenticatedError(MISSING, challenges=self.challenges(evidence))
        if self.failures.any_recent:
            evidence.check_claims(_claims(presented, evidence))
        return self._verified(presented, {}, evidence)

    def _verified(
        self, presented: Sequence[Scheme], verdicts: _Verdicts, evidence: Evidence
    ) -> Caller | Awaitable[Caller]:
        """Return the caller. ``verdicts`` are those known so far, of the first schemes."""
        for scheme in presented[len(verdicts) :]:
            try:
                proof = scheme.verify(evidence)
            except (CredentialsRefused, OverloadedError) as failure:
                verdicts[scheme] = failure
                continue
            if not isinstance(proof, Proof):
                return self._verified_later(scheme, proof, presented, verdicts, evidence)
            verdicts[scheme] = proof
        return self._judged(verdicts, evidence)

    async def _verified_later(
        self,
        scheme: Scheme,
        verifying: Awaitable[Proof],
        presented: Sequence[Scheme],
        verdicts: _Verdicts,
        evidence: Evidence,
    ) -> Caller:
        """Wait for the verdict of a scheme, then ask the remaining schemes."""
        try:
            verdicts[scheme] = await verifying
        except (CredentialsRefused, OverloadedError) as failure:
            verdicts[scheme] = failure
        caller = self._verified(presented, verdicts, evidence)
        return caller if isinstance(caller, Caller) else await caller

    def _judged(self, verdicts: _Verdicts, evidence: Evidence) -> Caller:
        """Return the caller that all schemes prove together. Raises the error of a rejection."""
        proofs = {own: each for own, each in verdicts.items() if isinstance(each, Proof)}
        if len(proofs) < len(verdicts):
            # Several schemes may read one credential: two issuers, or two agents at the same
            # address.
            accepted = {scheme.credential for scheme in proofs}
            failures = [
                (scheme, failure)
                for scheme, failure in verdicts.items()
                if not isinstance(failure, Proof)
                and (not scheme.credential or scheme.credential not in accepted)
            ]
            if failures:
                raise self._refusal(failures, evidence)
        try:
            return caller_proved_by(proofs)
        except UnauthenticatedError as error:
            scheme = " & ".join(each.name for each in proofs)
            self.failures.note(
                evidence.scope, scheme=scheme, reason="credentials of different people"
            )
            challenges = self.challenges(evidence, error="invalid_token")
            raise UnauthenticatedError(error.message, challenges=challenges) from None

    def _refusal(
        self,
        failures: Sequence[tuple[Scheme, CredentialsRefused | OverloadedError]],
        evidence: Evidence,
    ) -> UnauthenticatedError | OverloadedError:
        refusals: dict[object, tuple[Scheme, CredentialsRefused]] = {}
        for scheme, failure in failures:
            if isinstance(failure, OverloadedError):
                return failure
            # A credential is counted as rejected once, by the scheme that it is meant for if there
            # is one.
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
    authorizations: Iterable[Authorization | None],
    resources: SchemeResources | None = None,
    kind: type[Authenticator] = Authenticator,
) -> Authenticator | None:
    """Return the authenticator for the schemes of some agents, ``None`` if they have no schemes.

    An agent without rules accepts everyone.
    """
    securities: list[Security] = []
    for each in authorizations:
        if each is None or each.security is None:
            securities.append(anonymous)
        if each is not None:
            securities += each.securities
    made = kind(securities, resources)
    return made if made.schemes else None


def _claims(schemes: Iterable[Scheme], evidence: Evidence) -> list[tuple[str, str]]:
    """Return the ids that credentials claim, with the names of the schemes."""
    named = ((scheme.name, scheme.claimed(evidence)) for scheme in schemes)
    return [claim for claim in named if claim[1]]
