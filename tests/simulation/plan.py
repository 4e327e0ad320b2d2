"""The parameters of a simulation, drawn from a seed: its size and its faults."""

from __future__ import annotations

from random import Random

import msgspec


class Plan(msgspec.Struct, kw_only=True):
    """One simulation. Times are in simulated seconds; ``faults`` are mean intervals."""

    seconds: float
    is_embedded: bool = False
    roles: tuple[str, ...] = ("both",)
    skews: tuple[float, ...] = (0.0,)
    lease: float = 5.0
    drain: float = 2.0
    has_bus: bool = True
    hint_delay: float = 0.003
    hints_lost: float = 0.0
    hints_repeated: float = 0.0
    store_delay: float = 0.001
    late_append: float = 0.0
    forgets: float = 0.0
    net_delay: float = 0.002
    has_webhooks: bool = False
    clients: int = 2
    errands: int = 3
    max_running: int = 1000
    max_queued: int = 10_000
    max_attempts: int = 20
    on_crash: str = "rerun"
    moment: float = 0.2
    cancel_grace: float = 1.0
    turn_timeout: float | None = None
    task_timeout: float | None = None
    faults: dict[str, float] = {}

    @property
    def is_gentle(self) -> bool:
        """Whether replicas come and go, without any death or false expiry."""
        kinds = self.faults.keys() - {"drain", "hang up", "bus"}
        return not (kinds or self.forgets or self.late_append) and self.store_delay < 0.01


FAULTS = {
    "crash": (3, 20),
    "pause": (3, 15),
    "hiccup": (0.5, 5),
    "drain": (4, 20),
    "cut": (2, 10),
    "down": (5, 20),
    "slow": (3, 15),
    "bus": (3, 15),
    "hang up": (0.5, 4),
}
"""Faults, with their minimum and maximum mean interval in seconds."""


def plan_for(seed: int) -> Plan:
    """Return the plan of a seed."""
    return plan_of(Random(seed ^ 0x5EED))


def plan_of(random: Random) -> Plan:
    """Draw a plan. Each has only some of the faults: too many at once hide one another."""
    maybe = random.random
    plan = Plan(seconds=random.choice([4, 8, 8, 15]))
    if maybe() < 0.12:
        plan.is_embedded = True
        kinds = ["crash", "hiccup", "drain", "down", "slow", "hang up"]
    else:
        replicas = random.choice([1, 2, 2, 3, 3, 4])
        roles = ["both"] * replicas
        if replicas > 1 and maybe() < 0.3:
            roles = [random.choice(["both", "api", "worker"]) for _ in range(replicas)]
            roles[0], roles[1] = random.choice(["both", "api"]), "worker"
        plan.roles = tuple(roles)
        plan.skews = tuple(random.choice([0, 0, -3, 5, 3600, -7200]) for _ in range(replicas))
        kinds = list(FAULTS)
    plan.faults = {
        kind: random.uniform(*FAULTS[kind])
        for kind in kinds
        if maybe() < random.choice([0.0, 0.2, 0.4, 0.7])
    }
    plan.lease = random.choice([1.0, 2.0, 5.0])
    plan.drain = random.choice([0.0, 0.5, 2.0])
    plan.has_bus = maybe() < 0.75
    plan.hint_delay = random.choice([0.001, 0.003, 0.05, 0.5])
    plan.hints_lost = random.choice([0.0, 0.0, 0.1, 0.5, 1.0])
    plan.hints_repeated = random.choice([0.0, 0.0, 0.2])
    plan.store_delay = random.choice([0.0002, 0.001, 0.01, 0.05])
    plan.late_append = random.choice([0.0, 0.0, 0.0, 0.01])
    plan.forgets = random.choice([0.0, 0.0, 0.0, 0.01, 0.03])
    plan.net_delay = random.choice([0.0005, 0.002, 0.02])
    plan.clients = random.choice([1, 2, 3])
    plan.errands = random.choice([1, 2, 3, 4])
    if maybe() < 0.3:
        plan.max_running = random.choice([1, 2, 3])
        plan.max_queued = random.choice([1, 5, 100])
    plan.max_attempts = random.choice([2, 20, 20, 20])
    plan.on_crash = random.choice(["rerun"] * 9 + ["fail"])
    plan.moment = random.choice([0.0, 0.05, 0.2])
    plan.cancel_grace = random.choice([0.1, 1.0])
    if maybe() < 0.1:
        plan.turn_timeout = random.choice([0.5, 3.0])
    if maybe() < 0.1:
        plan.task_timeout = random.choice([1.0, 6.0])
    plan.has_webhooks = maybe() < 0.4
    return plan
