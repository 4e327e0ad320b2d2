"""The egress policies of a server, one for each use, from its settings and the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from parley.host.options import ServerOptions
from parley.security.egress import Egress

ALLOW_VARIABLE = "PARLEY_EGRESS_ALLOW"
DENY_VARIABLE = "PARLEY_EGRESS_DENY"
ONLY_VARIABLE = "PARLEY_EGRESS_ONLY_ALLOWED"

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"", "0", "false", "no", "off"})


def read_egress(
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    *,
    only_allowed: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Egress:
    """Return the policy of these options. The environment supplies the missing ones.

    Raises ``ValueError`` with the name of the variable that is wrong.
    """
    only = environ.get(ONLY_VARIABLE, "").strip().lower()
    if only not in _YES | _NO:
        raise ValueError(f"{ONLY_VARIABLE} is 1 or 0, not {only[:100]!r}")
    public = not (only_allowed or only in _YES)
    given = Egress(public=public)
    for variable, places, field in (
        (ALLOW_VARIABLE, allow, "allow"),
        (DENY_VARIABLE, deny, "deny"),
    ):
        listed = list(places)
        if not listed:
            listed = environ.get(variable, "").replace(",", " ").split()
        try:
            given = given.adding(listed) if field == "allow" else given.denying(listed)
        except ValueError as error:
            raise ValueError(f"egress_{field} ({variable}): {error}") from error
    return given


class EgressPolicies(NamedTuple):
    """The policies of a host: one for all requests that foreign data causes, and one per use."""

    all: Egress
    webhooks: Egress
    files: Egress
    agents: Egress

    @classmethod
    def of(cls, options: ServerOptions) -> EgressPolicies:
        """Return the policies of a server. Raises ``TypeError`` and ``ValueError``."""
        egress = read_egress() if options.egress is None else options.egress
        if not isinstance(egress, Egress):
            raise TypeError(
                f"egress is a policy, as Egress.of(allow=[...], deny=[...]), not {egress!r:.200}"
            )
        webhooks, files = options.allow_private_webhooks, options.allow_private_files
        agents = options.allow_private_agents or ()
        return cls(
            egress,
            egress.adding(webhooks, option="allow_private_webhooks"),
            egress.adding(files, option="allow_private_files"),
            egress.adding(agents, option="allow_private_agents"),
        )
