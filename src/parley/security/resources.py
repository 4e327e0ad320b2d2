"""What a server lends the security schemes of its agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from parley.security.egress import Egress
from parley.security.failures import Failures


class SchemeResources(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lends the schemes of its agents.

    ``store`` is the server's store, for what is kept there. ``egress`` restricts where keys and
    metadata are fetched from; an issuer that the operator names may be on any host. ``now`` returns
    the time in seconds since the epoch. ``failures`` counts refused credentials: a scheme that
    makes requests wait before it verifies them asks it again then.
    """

    store: Any = None
    egress: Egress = Egress()
    now: Callable[[], float] = time.time
    failures: Failures = msgspec.field(default_factory=Failures)
