"""Plays a customer of the repair shop: with a car that rattles, and a video of that.

    python examples/car_repair_shop/shop.py
    python examples/car_repair_shop/customer.py

A shop elsewhere is named behind the command: `customer.py http://127.0.0.1:9300`. The same by hand
is `parley send`, with `--file engine.avi` for the video (noise.py makes one).
"""

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

import parley
from parley import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

sys.path.insert(0, str(Path(__file__).parent))
from noise import record

SHOP = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9999"
BEGIN = "My car is making a rattling noise"
ANSWERS = {
    "Which car": "A Toyota Camry 2018, XYZ123",
    "picture or a video": "Here it is",
    "is in stock": "Can you make it cheaper?",
    "For you": "Express, please",
}


async def main() -> None:
    """Say what is wrong, and answer until the car is repaired."""
    with tempfile.TemporaryDirectory() as folder:
        video = record(Path(folder) / "engine.avi")
        async with parley.connect(SHOP) as shop:
            said, files, task = BEGIN, [], None
            while True:
                print(f"customer: {said}{' (engine.avi)' if files else ''}")
                task = await talk(shop, said, files, task)
                if task.state is not TaskState.INPUT_REQUIRED:
                    break
                question = task.status.message.text
                said = next((ANSWERS[each] for each in ANSWERS if each in question), "No")
                files = [video] if "video" in question else []


async def talk(shop: parley.RemoteAgent, said: str, files: list[Path], task: Task | None) -> Task:
    """Send a message, print what the shop says, and return the task when it waits or has ended."""
    async with shop.stream(said, files=files, task=task) as stream:
        async for event in stream:
            if isinstance(event, TaskStatusUpdateEvent) and event.status.message:
                print(f"shop:     {event.status.message.text}")
            elif isinstance(event, TaskArtifactUpdateEvent):
                print(f"shop:     {event.artifact.parts[0].text}")
    return await shop.get(stream.task_id)


if __name__ == "__main__":
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(main())
    except parley.ClientError as error:
        raise SystemExit(f"{error}\nIs the shop open? shop.py opens it.") from None
