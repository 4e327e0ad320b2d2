"""Simulations of the engine: many seeds, each with replicas, callers and faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.mutations import ALL, Mutation, named

SEEDS = int(os.environ.get("PARLEY_SEEDS", "200"))
"""Total number of seeds."""

SHARES = 8
ENOUGH = 400
"""Maximum number of seeds until a broken engine is detected."""


def _run(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run simulations in a separate process, as they replace clocks, randomness and ids."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_goes_wrong_nothing_is_lost_doubled_or_left_behind(share: int) -> None:
    each = -(-SEEDS // SHARES)
    done = _run("--seeds", str(each), "--from", str(share * each), "--keep-going")
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-5_000:]
    assert f"{each} seeds from {share * each}, 0 failed" in done.stdout


@pytest.mark.slow
def test_whatever_goes_wrong_all_webhooks_are_told() -> None:
    each = -(-SEEDS // SHARES)
    done = _run("--webhooks", "--seeds", str(each), "--from", str(SEEDS), "--keep-going")
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-5_000:]
    assert f"{each} seeds from {SEEDS}, 0 failed" in done.stdout


@pytest.mark.parametrize("mutation", ALL, ids=lambda kind: kind.__name__)
def test_an_engine_that_is_broken_on_purpose_is_found_out(mutation: type[Mutation]) -> None:
    done = _run("--seeds", str(ENOUGH), "--break", mutation.__name__)
    assert done.returncode == 1, f"Not detected: {mutation.__doc__}\n{done.stdout}{done.stderr}"
    assert "VIOLATED" in done.stdout, done.stdout[-5_000:] + done.stderr


def test_a_seed_does_the_same_every_time() -> None:
    first = _run("--seeds", "20", "--from", "500", "--digests")
    again = _run("--seeds", "20", "--from", "500", "--digests", hash_seed="17")
    digests = [line for line in first.stdout.splitlines() if len(line.split()) == 2]
    assert len(digests) == 20, first.stdout + first.stderr
    assert len({line.split()[1] for line in digests}) == 20
    assert digests == [line for line in again.stdout.splitlines() if len(line.split()) == 2]


def test_a_seed_can_be_replayed_by_itself() -> None:
    among_others = _run("--seeds", "6", "--from", "40", "--digests").stdout
    alone = _run("--seed", "45").stdout
    digest = next(line.split()[1] for line in among_others.splitlines() if line.startswith("45 "))
    assert f"digest {digest}" in alone
    assert "commit t1 1:" in alone


def test_an_unknown_way_to_break_the_engine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there are .*NoFencing"):
        named("Nothing")
