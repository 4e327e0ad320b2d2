"""Reports about numbers: three agents look at them at once, and one report has all three.

    parley serve examples/report.py
    parley send '{"values": [10, 11, 12, 11, 13, 40, 14, 15]}'

The agents are called together, each keeps its own tasks, and each could run elsewhere. If one of
them fails, the report says so, and has what the others found.
"""

from statistics import fmean, pstdev
from typing import Annotated, Any

from msgspec import Meta

from parley import Agent
from parley.compose import Outcome, parallel

Numbers = Annotated[list[float], Meta(min_length=1, description="at least one")]

statistics = Agent("Statistics", description="Describes numbers")
trend = Agent("Trend", description="Says where numbers are going")
anomalies = Agent("Anomalies", description="Finds the numbers that do not fit")


@statistics.skill
def describe(values: Numbers) -> dict[str, float]:
    """Returns mean, spread, smallest and largest."""
    return {
        "mean": round(fmean(values), 2),
        "spread": round(pstdev(values), 2),
        "smallest": min(values),
        "largest": max(values),
    }


@trend.skill
def direction(values: Numbers) -> dict[str, Any]:
    """Fits a line, and says whether it rises."""
    middle, average = (len(values) - 1) / 2, fmean(values)
    spread = sum((x - middle) ** 2 for x in range(len(values)))
    slope = sum((x - middle) * (y - average) for x, y in enumerate(values)) / (spread or 1)
    course = "rises" if slope > 0.01 else "falls" if slope < -0.01 else "stays"
    return {"course": course, "slope": round(slope, 2)}


@anomalies.skill
def find(values: Numbers) -> list[dict[str, float]]:
    """Returns the numbers that are two spreads away from the mean."""
    mean, spread = fmean(values), pstdev(values)
    return [
        {"position": position, "value": value}
        for position, value in enumerate(values, 1)
        if spread and abs(value - mean) > 2 * spread
    ]


def report(outcomes: list[Outcome]) -> str:
    """Write one report of what the agents found, and name those that found nothing."""
    lines = ["# Report"]
    for outcome in outcomes:
        lines += ["", f"## {outcome.part}", ""]
        lines.append(str(outcome.data) if outcome.ok else f"No result: {outcome.failure}")
    return "\n".join(lines)


agent = parallel(
    statistics,
    trend,
    anomalies,
    combine=report,
    failures="partial",
    name="Report",
    description="Describes numbers: statistics, trend and anomalies",
    examples=['{"values": [10, 11, 12, 11, 13, 40, 14, 15]}'],
)
