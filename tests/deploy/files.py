"""The files of ``deploy/``, parsed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted(p.name for p in (DEPLOY / "kubernetes").glob("*.yaml"))


def compose() -> dict[str, Any]:
    """Return the content of ``compose.yaml``."""
    said: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return said


def objects(name: str = "") -> list[dict[str, Any]]:
    """Return the objects of a Kubernetes file, by default of all."""
    names = [name] if name else KUBERNETES
    return [
        each
        for file in names
        for each in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text("utf-8"))
    ]


def deployments() -> list[dict[str, Any]]:
    """Return all Deployments."""
    return [each for each in objects() if each["kind"] == "Deployment"]


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of a Deployment."""
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def entrypoint() -> list[str]:
    """Return the image's entrypoint, without the user's arguments."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    (line,) = re.findall(r"^ENTRYPOINT \[(.+)\]$", text, re.M)
    return re.findall(r'"([^"]+)"', line)


def seconds(text: str) -> float:
    """Return a duration of compose or HAProxy in seconds."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
