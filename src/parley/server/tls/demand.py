"""Decides whether callers are asked for a certificate, by what agents require of them."""

from __future__ import annotations

from collections.abc import Sequence

from parley.security.authorization import Authorization
from parley.security.schemes.mutual_tls import MutualTls
from parley.security.schemes.scheme import Security
from parley.server.tls.options import CallerCertificates


def asked_of_callers(authorizations: Sequence[Authorization | None]) -> CallerCertificates:
    """Return whether callers must have a certificate of the server's ``client_ca``.

    They must if every agent requires one, or if no agent says what certificates are for. Where
    certificates are one of several ways to authenticate, callers may do without.
    """
    rules = [each for each in authorizations if each is not None]
    if not any(_schemes(each) for each in rules):
        return "required"
    is_required = len(rules) == len(authorizations) and all(map(_is_required, rules))
    return "required" if is_required else "optional"


def lacks_certificates(authorizations: Sequence[Authorization | None]) -> list[MutualTls]:
    """Return the schemes that nobody satisfies on a server that asks for no certificates."""
    found = (scheme for each in authorizations if each is not None for scheme in _schemes(each))
    return [each for each in dict.fromkeys(found) if not each.reads_header]


def _schemes(rules: Authorization) -> list[MutualTls]:
    return [
        scheme
        for security in rules.securities
        for scheme in security.schemes
        if isinstance(scheme, MutualTls)
    ]


def _is_required(rules: Authorization) -> bool:
    own = () if rules.security is None else (rules.security,)
    return bool(own) and all(map(_needs_certificate, (*own, *rules.operations.values())))


def _needs_certificate(security: Security) -> bool:
    return all(
        any(isinstance(each.scheme, MutualTls) and not each.scheme.reads_header for each in needs)
        for needs in security.alternatives
    )
