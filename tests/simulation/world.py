"""The shared state of a simulation: the seed, the time, the names, and the trace."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.mutations import NONE, Mutation
from tests.simulation.plan import Plan, plan_for


class Violation(AssertionError):
    """A broken rule. The simulation ends here."""


class World:
    """One simulation: all random values come from ``random``."""

    def __init__(self, seed: int, *, plan: Plan | None = None, mutation: Mutation = NONE) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.plan = plan or plan_for(seed)
        self.mutation = mutation
        self.loop = SimulatedLoop(self.random)
        self.seen: list[tuple[float, str, tuple[Any, ...]]] = []
        self.names: dict[str, str] = {}
        self.problems: list[str] = []
        self.is_quiet = False
        self.opening = ""
        self.calm_since = 0.0
        self._counters: dict[str, int] = {}

    @property
    def here(self) -> Process | None:
        """The process that runs now."""
        return PROCESS.get(None)

    # -- randomness ------------------------------------------------------------------------------

    def delay(self, usual: float) -> float:
        """Return a random delay around the usual one: now and then much longer."""
        drawn = self.random.random()
        if drawn < 0.01 and not self.is_quiet:
            return min(8.0, usual * self.random.uniform(10, 200))
        return usual * (0.5 + drawn)

    def forgets(self, what: str) -> bool:
        """Whether a response gets lost."""
        if self.is_quiet or self.random.random() >= self.plan.forgets:
            return False
        self.trace("no answer to", what)
        return True

    def unavailable_reason(self, seconds: float = 0.0) -> None:
        """Record a fault that lasts at least the given time."""
        self.calm_since = max(self.calm_since, self.loop.time() + seconds)

    # -- names, times --------------------------------------------------------------------------

    def new_id(self, at: int | None = None) -> str:
        """Return an id like Parley's: it begins with the time, by the clock of the process."""
        here = self.here or self.loop.world
        number = self._counters["id"] = self._counters.get("id", 0) + 1
        moment = self.milliseconds() if at is None else at
        return f"{moment:012x}7{number & 0xFFF:03x}8{here.number & 0xFFF:03x}{number:012x}"

    def milliseconds(self) -> int:
        """Return the time in ms by the clock of the current process, which may be wrong."""
        here = self.here or self.loop.world
        return 1_700_000_000_000 + int((self.loop.time() + here.skew) * 1000)

    def name(self, kind: str, id: str) -> str:
        """Return a short name for an id, the same every time."""
        name = self.names.get(id)
        if name is None:
            number = self._counters[kind] = self._counters.get(kind, 0) + 1
            name = self.names[id] = f"{kind}{number}"
        return name

    # -- the trace -------------------------------------------------------------------------------

    def trace(self, *what: Any) -> None:
        """Record an event."""
        here = self.here
        self.seen.append((self.loop.time(), here.name if here else "-", what))

    def violated(self, rule: str, *what: Any) -> None:
        """End the simulation: a rule does not hold."""
        self.trace("VIOLATED", rule, *what)
        self.loop.failure = Violation(f"{rule}: {' '.join(str(part) for part in what)}")
        raise self.loop.failure

    def problem(self, what: str) -> None:
        """Record an error that cannot be raised where it occurs."""
        if self.loop.is_closed():
            return
        self.trace("PROBLEM", what)
        self.problems.append(what)

    def lines(self) -> Iterator[str]:
        """Yield the trace as readable lines."""
        for at, name, what in self.seen:
            yield f"{at:9.4f} {name:>10}  " + " ".join(str(part) for part in what)

    def digest(self) -> str:
        """Return a hash of the trace and of the order of execution."""
        digest = hashlib.sha256(self.loop.path)
        for line in self.lines():
            digest.update(line.encode())
        return digest.hexdigest()[:16]


class _Listener(logging.Handler):
    """Reads the server's log messages. An unexpected one is a problem."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        here = self._world.here
        if (here is not None and here.is_dead) or self._world.loop.is_closed():
            return
        if record.name == "parley.audit.lines":  # they contain this process and this user
            return
        said = record.getMessage()
        self._world.trace("log", said[:200])
        if record.exc_info and "the skill" not in said:
            error = record.exc_info[1]
            self._world.problem(f"{said}: {type(error).__name__}: {error}")


@contextmanager
def listening(world: World) -> Iterator[None]:
    """Read the server's log messages within the context."""
    logger, handler = logging.getLogger("parley"), _Listener(world)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
