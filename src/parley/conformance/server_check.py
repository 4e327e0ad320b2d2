"""A check of a server: a requirement, where it can be tried, and the function that tries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from parley.conformance.verdicts import ConformanceRequirement, Level

ALL_VERSIONS = ("1.0", "0.3")
ALL_BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
OVER_HTTP = ("JSONRPC", "HTTP+JSON")

Run = Callable[[Any], Awaitable[None]]
Scope = Literal["card", "interface"]


class ServerCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check. ``run`` raises ``Violation`` or ``NotApplicable``, or returns.

    A check of the card gets a ``CardProbe``, once; one of interfaces gets a ``Probe`` for each that
    speaks one of ``bindings`` and ``versions``.
    """

    requirement: ConformanceRequirement
    run: Run
    scope: Scope = "interface"
    versions: tuple[str, ...] = ALL_VERSIONS
    bindings: tuple[str, ...] = ALL_BINDINGS


class Checks:
    """The checks of one module, in order."""

    def __init__(self, scope: Scope = "interface") -> None:
        self.all: list[ServerCheck] = []
        self._scope: Scope = scope

    def __call__(
        self,
        id: str,
        level: Level,
        section: str,
        title: str,
        *,
        versions: tuple[str, ...] = ALL_VERSIONS,
        bindings: tuple[str, ...] = ALL_BINDINGS,
    ) -> Callable[[Run], Run]:
        """Add the function below as a check."""

        def added(run: Run) -> Run:
            requirement = ConformanceRequirement(id=id, level=level, section=section, title=title)
            self.all.append(
                ServerCheck(
                    requirement=requirement,
                    run=run,
                    scope=self._scope,
                    versions=versions,
                    bindings=bindings,
                )
            )
            return run

        return added
