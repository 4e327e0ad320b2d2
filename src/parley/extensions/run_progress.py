"""How a run of a model goes, while it goes (``docs/extensions/run-progress.md``)."""

from __future__ import annotations

from typing import Any

from parley.model.extensions import Extension
from parley.model.tasks import TaskStatusUpdateEvent

RUN_PROGRESS = "urn:parley:run-progress:v1"
"""The metadata of status updates that tell how a run goes."""


class RunProgress(Extension):
    """Status updates say which tools a model calls, and what it thinks.

    Agents of ``parley.llm`` and of frameworks declare it by themselves. Nobody has to activate it.
    """

    uri = RUN_PROGRESS
    description = (
        "Status updates have the tool calls and the thinking of a run in their metadata; it is "
        "always sent, and may be ignored."
    )


def run_progress(event: TaskStatusUpdateEvent) -> dict[str, Any] | None:
    """Return what a status update tells of a run, ``None`` if it tells nothing."""
    said = (event.metadata or {}).get(RUN_PROGRESS)
    return said if isinstance(said, dict) and isinstance(said.get("kind"), str) else None
