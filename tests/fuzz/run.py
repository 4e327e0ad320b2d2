"""Run each target for some time: ``python -m tests.fuzz.run --seconds 60 [TARGET ...]``.

hypothesis derives inputs from the seeds of a target, and prefers inputs that run more lines of
Parley. The exit status is 1 when a promise is broken; ``.fuzz/`` then has the smallest input that
broke it. The same ``--seed`` makes the same search.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

import parley
from parley.wire import versions
from tests.fuzz import answered, asked, credentials, registry, served
from tests.fuzz.inputs import inputs

REGRESSIONS = Path(__file__).parent / "regressions"
KEPT = Path(".fuzz")
ROUND = 2000
"""Inputs of a round; the second half of each round favours inputs that reach new lines."""

PATIENCE = 20.0
MOST_MEMORY = 4 * 1024**3
# How many lines may run for an input, and for each byte of it.
MOST_LINES, MOST_LINES_A_BYTE = 30_000, 120


class Target(NamedTuple):
    """A function that takes any bytes, and raises when a promise is broken.

    ``form`` is the form of its inputs, as in ``inputs``.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    form: str = "line and json"


TARGETS: dict[str, Target] = {
    "envelope": Target(asked.envelope, asked.envelope_seeds, "json"),
    "json": Target(asked.any_json, asked.any_json_seeds),
    "limits": Target(asked.limits, asked.envelope_seeds, "json"),
    "page-tokens": Target(asked.page_tokens, asked.page_token_seeds, "text"),
    "callbacks": Target(asked.callbacks, asked.callback_seeds),
    "connections": Target(served.connections, served.connection_seeds, "text"),
    "server": Target(served.server, served.server_seeds),
    "responses": Target(answered.responses, answered.response_seeds, "json"),
    "refusals": Target(answered.refusals, answered.refusal_seeds),
    "statuses": Target(answered.statuses, answered.status_seeds, "line and protobuf"),
    "events": Target(answered.events, answered.event_seeds, "text"),
    "cards": Target(answered.cards, answered.card_seeds, "json"),
    "certificates": Target(credentials.certificates, credentials.certificate_seeds, "text"),
    "secrets": Target(credentials.secrets, credentials.secret_seeds, "text"),
    "tokens": Target(credentials.tokens, credentials.token_seeds, "text"),
    "claims": Target(credentials.claims, credentials.claims_seeds, "json"),
    "key-sets": Target(credentials.key_sets, credentials.key_set_seeds, "json"),
    "notifications": Target(credentials.bodies, credentials.body_seeds, "json"),
    "proofs": Target(credentials.proofs, credentials.proof_seeds, "text"),
    "signed-cards": Target(credentials.signed_cards, credentials.signed_card_seeds, "json"),
    "catalogs": Target(registry.checked, registry.catalog_seeds, "json"),
    "entries": Target(registry.examined, registry.examined_seeds, "json"),
    "robots": Target(registry.robots, registry.robots_seeds, "text"),
    "links": Target(registry.links, registry.link_seeds, "text"),
    "expressions": Target(registry.expressions, registry.expression_seeds, "text"),
    "filters": Target(registry.filters, registry.filter_seeds, "json"),
    "search-pages": Target(registry.places, registry.place_seeds, "text"),
    "marks": Target(registry.texts, registry.text_seeds, "text"),
    "entry-texts": Target(registry.described, registry.described_seeds, "json"),
    "sockets": Target(served.sockets, served.socket_seeds, "line and protobuf"),
    "envelope-messages": Target(
        credentials.envelope_messages, credentials.envelope_message_seeds, "json"
    ),
    "envelope-cards": Target(credentials.envelope_cards, credentials.envelope_card_seeds, "json"),
    "headers": Target(answered.headers, answered.header_seeds, "line and text"),
}
for _version in versions.SUPPORTED_VERSIONS:
    TARGETS[f"params-{_version}"] = Target(asked.params(_version), asked.params_seeds(_version))
    TARGETS[f"http-json-{_version}"] = Target(asked.http_json, asked.http_json_seeds(_version))
    TARGETS[f"protobuf-{_version}"] = Target(
        asked.protobuf(_version), asked.protobuf_seeds(_version), "line and protobuf"
    )
for _name in answered.CODECS:
    _form = "line and protobuf" if _name.startswith("protobuf") else "line and json"
    TARGETS[f"answers-{_name.replace(' ', '-').replace('_', '-')}"] = Target(
        answered.answers(_name), answered.answer_seeds(_name), _form
    )


def seeds_of(name: str) -> list[bytes]:
    """Return the first inputs of a search, with all that once broke a promise."""
    once = sorted((REGRESSIONS / name).glob("*"))
    return [*TARGETS[name].seeds(), *map(Path.read_bytes, once)]


class Hang(BaseException):
    """A call that did not end."""


class Outcome(NamedTuple):
    """The result of one target: executions, lines that ran, and the input that broke a promise."""

    name: str
    executions: int
    lines: int
    crashes: list[tuple[Path, str]]

    def __str__(self) -> str:
        found = f"{len(self.crashes)} crashes" if self.crashes else "no crash"
        return f"{self.name:24} {self.executions:8,} executions {self.lines:6,} lines, {found}"


OURS = str(Path(parley.__file__).parent)


def lines_of(call: Callable[[bytes], None], data: bytes) -> Counter[tuple[str, int]]:
    """Call a function, and return how often each line of Parley ran. Its exceptions pass."""
    ran: Counter[tuple[str, int]] = Counter()

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            ran[frame.f_code.co_filename, frame.f_lineno] += 1
        return on_line

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(OURS) else None

    others = sys.gettrace()
    sys.settrace(on_call)
    try:
        call(data)
    finally:
        sys.settrace(others)
    return ran


def check(name: str, data: bytes) -> Counter[tuple[str, int]]:
    """Run a target; raise when it takes too long, or too many lines."""
    has_timer = hasattr(signal, "setitimer")
    if has_timer:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        ran = lines_of(TARGETS[name].run, data)
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
    total = ran.total()
    assert total <= MOST_LINES + MOST_LINES_A_BYTE * len(data), f"{total} lines, {len(data)} bytes"
    return ran


def _hung(signum: int, frame: object) -> None:
    raise Hang(f"no end within {PATIENCE:g} s")


def search(name: str, seconds: float, number: int, most: int) -> Outcome:
    """Search for so many seconds in a process of its own, with at most ``most`` inputs."""
    logging.disable()  # exceptions report the faults of an input
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _hung)
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    end, executions = time.monotonic() + seconds, 0
    lines: set[tuple[str, int]] = set()
    crashes: dict[str, tuple[bytes, str]] = {}

    def attempt(data: bytes) -> int:
        nonlocal executions
        if executions >= most or time.monotonic() > end:
            return 0
        executions += 1
        try:
            ran = check(name, data)
        except (Exception, Hang) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            known_as = f"{type(error).__name__} {place.filename}:{place.lineno}"
            if known_as not in crashes or len(data) < len(crashes[known_as][0]):
                words = "".join(traceback.format_exception(error))
                crashes[known_as] = (data, words)
            raise
        lines.update(ran)
        return len(ran)

    seeds = seeds_of(name)
    while not crashes and executions < most and time.monotonic() < end:

        @hypothesis.seed(number)
        @settings(
            max_examples=min(most, ROUND),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.target, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @given(inputs(TARGETS[name].form, seeds))
        def made(data: bytes) -> None:
            hypothesis.target(float(attempt(data)))

        try:
            if not executions:
                for data in seeds:
                    attempt(data)
            made()
        except BaseException:
            if not crashes:
                raise
        number += 1
    return Outcome(name, executions, len(lines), [_kept(name, *each) for each in crashes.values()])


def _kept(name: str, data: bytes, words: str) -> tuple[Path, str]:
    path = KEPT / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path, words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--executions", type=int, default=0, help="for each target, at the most")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    names = options.targets or [*TARGETS]
    print(f"{len(names)} targets for {options.seconds:g} s each, --seed {options.seed}", flush=True)
    crashed = False
    # Each target has its own process, so that one target's caches do not affect the next.
    each_anew = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, each_anew, max_tasks_per_child=1) as pool:
        found = [
            pool.submit(
                search, name, options.seconds, options.seed, options.executions or sys.maxsize
            )
            for name in names
        ]
        for each in found:
            outcome = each.result()
            print(outcome, flush=True)
            for path, words in outcome.crashes:
                crashed = True
                print(f"\n{path}\n{words}", flush=True)
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
