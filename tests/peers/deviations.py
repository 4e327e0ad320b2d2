"""The known deviations from the expected outcomes, in ``deviations.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .exchanges import EXCHANGES
from .matrix import CLIENT, SERVER, Cell, Outcome
from .table import TABLE

FILE = Path(__file__).with_name("deviations.toml")
WHOSE = ("theirs", "ours", "specification")


class Deviation(NamedTuple):
    """One side of a peer deviates in an exchange, over some bindings or all."""

    peer: str
    side: str
    exchange: str
    whose: str
    why: str
    happens: str
    over: tuple[str, ...] = ()

    def covers(self, cell: Cell, exchange: str) -> bool:
        """Return whether it applies to an exchange of a cell."""
        mine = (self.peer, self.side, self.exchange) == (cell.peer, cell.side, exchange)
        return mine and (not self.over or f"{cell.binding} {cell.version}" in self.over)


def known(text: str | None = None) -> list[Deviation]:
    """Return all known deviations. Raises ``ValueError`` for an invalid entry."""
    table = tomllib.loads(FILE.read_text("utf-8") if text is None else text)
    found = []
    for entry in table.get("deviation", []):
        try:
            one = Deviation(**{**entry, "over": tuple(entry.get("over", ()))})
        except TypeError as error:
            raise ValueError(f"{entry}: {error}") from None
        if one.peer not in TABLE or one.side not in (CLIENT, SERVER):
            raise ValueError(f"there is no {one.side} of {one.peer}")
        if one.exchange not in EXCHANGES or one.whose not in WHOSE:
            raise ValueError(f"{entry} names no exchange, or nobody whose fault it is")
        found.append(one)
    return found


def differences(
    results: Mapping[Cell, Mapping[str, Outcome]], entries: list[Deviation]
) -> list[str]:
    """Return the outcomes that differ from the known ones, for better or for worse."""
    lines = []
    for cell, outcomes in results.items():
        for exchange, outcome in outcomes.items():
            mine = [entry for entry in entries if entry.covers(cell, exchange)]
            if not outcome.offered or not outcome.failed:
                lines += [f"{cell}: {exchange}: works, and is known not to" for _ in mine]
            elif not any(re.search(entry.happens, outcome.failed) for entry in mine):
                lines.append(f"{cell}: {exchange}: {outcome.failed}")
    return lines
