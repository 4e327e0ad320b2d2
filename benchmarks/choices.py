"""What each choice of a user costs a request, beside the same agent without it.

    python benchmarks/choices.py [--rounds 3] [--seconds 1.5] [--only tls]

One server for each choice, all measured in turns by the load generator, which checks every answer.
A direct reply, except for stores: those keep tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import rows
import services
import tables
from processes import HERE, Server, running
from servers.chosen import KEY

TRACE = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DIRECT, TASK = "a direct reply", "a task in memory"


class Choice(NamedTuple):
    """One choice: what the server is told, and what the load generator adds."""

    name: str
    chosen: str
    load: tuple[str, ...] = ()
    does: str = "reply"


CHOICES = (
    Choice("nothing", "plain"),
    Choice("a caller's `traceparent`", "plain", ("--header", TRACE)),
    Choice("`caller=`, an `async def`", "caller"),
    Choice("`ApiKey`", "key", ("--header", f"X-API-Key: {KEY}")),
    Choice("`Bearer`, an `async def`", "bearer", ("--header", f"Authorization: Bearer {KEY}")),
    Choice("`caller=` and one rate in `limits=`", "limit"),
    Choice("`caller=` and `usage=True`", "usage"),
    Choice("a middleware that does nothing", "middleware"),
    Choice("the access log, into a file", "log"),
    Choice("gRPC on a port beside it", "grpc"),
    Choice("TLS", "tls", ("--tls",)),
    Choice("under uvicorn", "uvicorn"),
    Choice("in a Starlette app under uvicorn", "mounted"),
    Choice("no store but memory", "plain", (), "task"),
    Choice("SQLite, `synchronous=NORMAL`", "NORMAL", (), "task"),
    Choice("SQLite, every commit on disk", "FULL", (), "task"),
    Choice("PostgreSQL", "postgresql", (), "task"),
)


def measure(rounds: int, seconds: float, only: str = "") -> dict[str, Any]:
    """Measure all choices in interleaved rounds; return their costs, and what is missing.

    Raises ``SystemExit`` after a wrong answer.
    """
    chosen = [choice for choice in CHOICES if only in choice.name or choice.chosen == "plain"]
    missing: dict[str, str] = {}
    costs: dict[str, list[dict[str, Any]]] = {}
    with rows.scratch() as place, contextlib.ExitStack() as stack:
        started: dict[tuple[str, str], Server] = {}
        with_certificate(place)
        for choice in chosen:
            key = choice.chosen, choice.does
            if key in started:
                continue
            told = choice.chosen
            try:
                if told == "postgresql":
                    told = stack.enter_context(services.postgres(place / "postgres")).database()
                command = [sys.executable, str(HERE / "servers/chosen.py")]
                server = running(
                    command, choice.does, told, str(place), log=place / f"{len(started)}.log"
                )
                started[key] = stack.enter_context(server)
            except (services.Missing, RuntimeError) as error:
                missing[choice.name] = str(error)
        for number in range(rounds):
            for choice in chosen:
                if choice.name in missing:
                    continue
                tables.progress(f"{choice.name}: {number + 1} of {rounds}")
                load = ["requests", "--connections", "32", "--check", choice.does]
                load += ["--seconds", str(seconds), *choice.load]
                try:
                    found = rows.generate(load, started[choice.chosen, choice.does])
                except RuntimeError as error:
                    raise SystemExit(f"{choice.name}: {error}") from None
                costs.setdefault(choice.name, []).append(found)
    return {"figures": ratios(chosen, costs), "missing": missing}


def ratios(chosen: list[Choice], costs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians, and what each is times the same agent without the choice."""
    figures: dict[str, Any] = {}
    plain: dict[str, float] = {}
    for choice in chosen:
        if choice.name not in costs:
            continue
        cost = rows.medians(costs[choice.name])["cpu_us"]
        plain.setdefault(choice.does, cost)  # the first of its kind is the one without
        figures[choice.name] = {
            "beside": DIRECT if choice.does == "reply" else TASK,
            "cpu_us": cost,
            "ratio": cost / plain[choice.does],
        }
    return figures


def with_certificate(place: Path) -> None:
    """Write a certificate for this machine, and its key, where the server finds them."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", "server.key", "-out", "server.pem", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        cwd=place,
        check=True,
        capture_output=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", default="", help="choices whose name contains this")
    options = parser.parse_args()
    found = measure(options.rounds, options.seconds, options.only)
    tables.progress("")
    print("\n".join(tables.marked(tables.choices_table({"choices": found}))))
    for name, why in found["missing"].items():
        print(f"not measured: {name}: {why}")


if __name__ == "__main__":
    main()
