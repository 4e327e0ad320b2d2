"""CrewAI's delegation to a remote agent, driven by exchanges."""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}

import base64
from typing import Any

from crewai.a2a.utils.agent_card import afetch_agent_card
from crewai.a2a.utils.delegation import aexecute_a2a_delegation
from crewai_files import ImageFile
from lines import Items, drive


class Refused(Exception):
    """The error in a result."""


async def do(command: dict[str, Any]) -> Items:
    endpoint = command["url"].rstrip("/") + "/.well-known/agent-card.json"
    if command["do"] == "card":
        yield {"name": (await afetch_agent_card(endpoint)).name}
        return
    options: dict[str, Any] = {}
    if file := command.get("file"):
        options["input_files"] = {"dot.png": ImageFile(source=base64.b64decode(file["bytes"]))}
    for text in command["texts"]:
        result = await aexecute_a2a_delegation(endpoint, None, 30, text, **options)
        state = result["status"].value
        if state in ("failed", "rejected"):
            raise Refused(result.get("error") or state)
        yield {"text": result.get("result") or result.get("error") or "", "state": state}
        ids = [one for one in result["history"] if one.task_id]
        if ids:
            options |= {"task_id": ids[-1].task_id, "context_id": ids[-1].context_id}


drive(do)
