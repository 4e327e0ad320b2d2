"""The figures of fleets, of stored tasks and of memory as tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

PARLEY = "Parley"
PLACE = re.compile(r"(<!-- fleet figures -->\n).*?(<!-- /fleet figures -->)", re.S)
PARTS = ("fleet", "stored", "memory")


def text(machine: dict[str, Any], results: dict[str, Any]) -> str:
    """Return the tables of the parts that were measured."""
    lines = [where(machine), ""]
    for part, tables in (("fleet", fleet), ("stored", stored), ("memory", memory)):
        if part in results:
            lines += tables(results[part])
            lines += [f"Not measured: {n}: {why}" for n, why in results[part]["missing"].items()]
    return "\n".join(lines).rstrip()


def where(machine: dict[str, Any]) -> str:
    """Return what it was measured on, in a line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores for everything, {machine['system']}; "
        f"PostgreSQL {machine.get('postgres', '-')}, Redis {machine.get('redis', '-')}, "
        f"Python {machine['python']}, fsync {machine['fsync_ms']:.2f} ms; {machine['date']}."
        + busy(machine)
    )


def busy(machine: dict[str, Any]) -> str:
    """Return a warning when the machine had other things to do."""
    if machine.get("busy", 0) < 0.75 * machine["cores"]:
        return ""
    return (
        f" **The machine was busy with other things meanwhile (load {machine['busy']:g}): compare "
        "rows and CPU, not rates with those of other runs.**"
    )


def fleet(results: dict[str, Any]) -> list[str]:
    """Return the tables of replicas on PostgreSQL."""
    lines = []
    for unit, by_kind in results.get("throughput", {}).items():
        lines += [
            f"| {unit} a second | 1 replica | 2 replicas | CPU each | beside official |",
            "|---|--:|--:|--:|--:|",
        ]
        official = next((f for name, f in by_kind.items() if not name.startswith(PARLEY)), {})
        for name, by_replicas in by_kind.items():
            one, two = by_replicas.get("1"), by_replicas.get("2")
            cells = [f"{f['per_second']:,.0f}" if f else "" for f in (one, two)]
            cells.append(f"{one['cpu_us']:,.0f} µs" if one else "")
            # At two replicas where both were measured there, else at one.
            at = next((n for n in ("2", "1") if n in official and n in by_replicas), None)
            beside = ""
            if at and name.startswith(PARLEY):
                ratio = by_replicas[at]["per_second"] / official[at]["per_second"]
                beside = f"{ratio:,.0f}x"
            lines.append("| " + " | ".join([name, *cells, beside]) + " |")
        lines.append("")
    if durability := results.get("durability"):
        lines += ["| durable tasks, one replica | a second | CPU each | p50 |", "|---|--:|--:|--:|"]
        lines += [
            f"| {name} | {f['per_second']:,.0f} | {f['cpu_us']:,.0f} µs | {f['p50_ms']:.1f} ms |"
            for name, f in durability.items()
        ]
        lines.append("")
    if across := results.get("across"):
        lines += [
            "| from agent to reader | p50 here | p50 elsewhere | p99 here | p99 elsewhere |",
            "|---|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {name} | {f['here']['p50_ms']:.1f} ms | {f['elsewhere']['p50_ms']:.1f} ms "
            f"| {f['here']['p99_ms']:.1f} ms | {f['elsewhere']['p99_ms']:.1f} ms |"
            for name, f in across.items()
        ]
        lines.append("")
    if loss := results.get("loss"):
        lines += [
            f"| SIGKILL to the next event, from another replica (lease {loss['lease']:g} s) "
            "| median | longest | times |",
            "|---|--:|--:|--:|",
        ]
        for name, f in loss.items():
            if name != "lease":
                told = [f"{f[k]:.1f} s" if f[k] else "never" for k in ("median_s", "longest_s")]
                lines.append(f"| {name} | {told[0]} | {told[1]} | {f['times']} |")
        lines.append("")
    return lines


def stored(results: dict[str, Any]) -> list[str]:
    """Return the table of what reading costs beside many stored tasks."""
    stores = {name: f for name, f in results.items() if isinstance(f, dict) and "ms" in f}
    if not stores:
        return []
    sizes = list(next(iter(stores.values()))["ms"])
    lines = [
        "| beside so many stored tasks | "
        + " | ".join(f"{int(size):,}" for size in sizes)
        + " | slope² |",
        "|---|" + "--:|" * (len(sizes) + 1),
    ]
    for store, figures in stores.items():
        for call in next(iter(figures["ms"].values())):
            costs = " | ".join(f"{figures['ms'][size][call]:.2f} ms" for size in sizes)
            lines.append(f"| {call}, {store} | {costs} | {figures['slope'].get(call, 0):.2f} |")
    lines.append("")
    lines += [
        f"- A stored task of four events takes {f['bytes_per_task'] / 1024:.1f} KiB in {store}, "
        "indices included."
        for store, f in stores.items()
        if "bytes_per_task" in f
    ]
    return [*lines, ""]


def memory(results: dict[str, Any]) -> list[str]:
    """Return the table of memory."""
    lines = ["| memory of the server for one of | 1,000 | 5,000 | 10,000 |", "|---|--:|--:|--:|"]
    for what, title in (("idle", "idle subscriptions"), ("parked", "parked tasks")):
        sizes = [name for name in results if name.startswith(what)]
        for who in dict.fromkeys(who for name in sizes for who in results[name]):
            cells = [results[name].get(who) for name in sizes]
            told = " | ".join(f"{c / 1024:.1f} KiB" if c is not None else "" for c in cells)
            lines.append(f"| {title}, {who} | {told} |")
    return [*lines, ""]


def write(results: dict[str, Any], document: Path) -> None:
    """Put the tables into a document, between ``fleet figures`` and ``/fleet figures``."""
    machine = next(results[part]["machine"] for part in PARTS if part in results)
    tables = text(machine, results)
    page = document.read_text("utf-8")
    if not PLACE.search(page):
        print(f"{document.name} has no place for the figures of a fleet", file=sys.stderr)
    document.write_text(PLACE.sub(lambda m: f"{m[1]}{tables}\n{m[2]}", page), "utf-8")
