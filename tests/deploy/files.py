"""The files of ``deploy/``, parsed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/parley-agent"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


def compose() -> dict[str, Any]:
    """Return the content of ``compose.yaml``."""
    said: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return said


@cache
def flags() -> set[str]:
    """Return the flags of ``parley serve`` from its help."""
    done = subprocess.run(
        [sys.executable, "-m", "parley.cli", "serve", "--help-all"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


def command_of(instruction: str) -> list[str]:
    """Return the words of the image's ENTRYPOINT, CMD or HEALTHCHECK."""
    (words,) = re.findall(rf"^{instruction} (?:.*\\\n +CMD )?(\[.+\])$", DOCKERFILE, re.M)
    found: list[str] = json.loads(words)
    return found


def seconds(text: str) -> float:
    """Return a duration of compose or HAProxy in seconds."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
