"""fasta2a's client, driven by exchanges."""

from typing import Any
from uuid import uuid4

from fasta2a.client import A2AClient
from lines import Items, drive


class Refused(Exception):
    """The error in an answer."""


def message(command: dict[str, Any], text: str, task: dict[str, Any] | None = None) -> Any:
    parts: list[Any] = [{"text": text}]
    if file := command.get("file"):
        parts.append({"raw": file["bytes"], "media_type": file["media_type"]})
    said = {"role": "user", "parts": parts, "message_id": uuid4().hex}
    if task:
        said |= {"task_id": task["id"], "context_id": task["context_id"]}
    return said


def result(answer: Any) -> Any:
    if "error" in answer:
        raise Refused(answer["error"]["message"])
    return answer["result"]


def told(answer: Any) -> dict[str, Any]:
    if "message" in answer:
        return {"text": "".join(part.get("text", "") for part in answer["message"]["parts"])}
    task = answer.get("task", answer)
    status = task["status"]
    found = task.get("artifacts") or [status["message"]] if "message" in status else []
    text = "".join(part.get("text", "") for one in found for part in one["parts"])
    return {"text": text, "state": status["state"]}


async def do(command: dict[str, Any]) -> Items:
    if command["do"] == "card":
        yield {"name": A2AClient(command["url"], fetch_card=True).agent_card["name"]}
        return
    client = A2AClient(command["url"])  # by default it fetches no card
    first, *others = command["texts"]
    if command["do"] == "stream":
        async for answer in client.stream_message(message(command, first)):
            event = result(answer)
            parts = event.get("artifact_update", {}).get("artifact", {}).get("parts", ())
            yield {"text": "".join(part.get("text", "") for part in parts)}
        return
    answer = result(await client.send_message(message(command, first)))
    yield told(answer)
    for text in others:
        task = answer["task"]
        yield told(result(await client.send_message(message(command, text, task))))


drive(do)
