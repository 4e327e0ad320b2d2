"""``python -m tests.simulation``: run simulations, or replay one.

python -m tests.simulation --seed 17            replay a seed, with its trace
python -m tests.simulation --seeds 100000       look for seeds that fail
python -m tests.simulation --seeds 500 --from 1000 --jobs 2
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
import warnings


def main() -> int:
    """Run the command line; return 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed and print what happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to try")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share them")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first")
    parser.add_argument("--break", dest="mutation", help="break the engine in a way, by its name")
    parser.add_argument("--webhooks", action="store_true", help="give all of them webhooks")
    parser.add_argument("--digests", action="store_true", help="print a hash of what each did")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of strings must not depend on the process.
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        return subprocess.call(command, env={**os.environ, "PYTHONHASHSEED": "0"})
    if arguments.jobs > 1 and arguments.seed is None:
        return _share(arguments)
    return _run(arguments)


def _share(arguments: argparse.Namespace) -> int:
    each = -(-arguments.seeds // arguments.jobs)
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(each)]
    if arguments.keep_going:
        command.append("--keep-going")
    if arguments.digests:
        command.append("--digests")
    if arguments.webhooks:
        command.append("--webhooks")
    if arguments.mutation:
        command += ["--break", arguments.mutation]
    shares = [
        subprocess.Popen([*command, "--from", str(arguments.first + n * each)])
        for n in range(arguments.jobs)
    ]
    return max(share.wait() for share in shares)


def _report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Ignore the cleanup of a dead process: it waits, and none of its code runs again."""
    if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
        sys.__unraisablehook__(unraisable)


def _run(arguments: argparse.Namespace) -> int:
    from tests.simulation.mutations import NONE, named
    from tests.simulation.plan import plan_for
    from tests.simulation.simulation import simulate

    mutation = named(arguments.mutation) if arguments.mutation else NONE
    is_replay = arguments.seed is not None
    seeds = (
        [arguments.seed] if is_replay else range(arguments.first, arguments.first + arguments.seeds)
    )
    # A killed process never finishes its pending coroutines.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    sys.unraisablehook = _report_unraisable
    gc.freeze()
    gc.disable()
    begun, failed, steps, commits = time.perf_counter(), [], 0, 0
    for number, seed in enumerate(seeds):
        plan = plan_for(seed)
        plan.has_webhooks = plan.has_webhooks or arguments.webhooks
        outcome = simulate(seed, plan=plan, mutation=mutation, keep=is_replay)
        steps, commits = steps + outcome.steps, commits + outcome.commits
        if arguments.digests:
            print(seed, outcome.digest, flush=True)
        if is_replay or outcome.failure:
            for line in outcome.trace if is_replay else outcome.trace[-60:]:
                print(line)
        if outcome.failure:
            failed.append(seed)
            print(f"seed {seed} fails: {outcome.failure}", flush=True)
            print(f"replay it: python -m tests.simulation --seed {seed}", flush=True)
            if not arguments.keep_going:
                break
        if number % 20 == 19:
            gc.collect()
    took = time.perf_counter() - begun
    print(
        f"{len(seeds)} seeds from {seeds[0]}, {len(failed)} failed, {steps} steps, "
        f"{commits} commits, {took:.1f} s"
    )
    if is_replay:
        print(f"digest {outcome.digest}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
