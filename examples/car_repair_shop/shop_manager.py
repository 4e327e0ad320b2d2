"""Talks with customers of the repair shop, and gives the cars to the mechanic.

    python examples/car_repair_shop/shop.py
    parley send "My car is making a rattling noise"

A language model reads what the customer writes: PARLEY_MODEL_URL names its endpoint, such as
http://localhost:11434/v1, and PARLEY_MODEL the model. Without one the rules below read it.
"""

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from parley import Agent, Message, Part, RemoteTaskFailed, Turn
from parley.llm import ModelLoop, ModelRequest

MECHANIC = os.environ.get("MECHANIC", "http://127.0.0.1:9101")
SEEN = ("video/", "image/", "audio/")
MAKES = ("Toyota", "Volkswagen", "Ford", "Honda", "Škoda")

agent = Agent(
    "Shop manager",
    description="Repairs cars: tell what is wrong with yours",
    input_modes=["text/plain", "video/*", "image/*", "audio/*"],
)


@dataclass
class Complaint:
    """What a customer said about a car; empty where nothing was said."""

    make: str = ""
    model: str = ""
    year: int = 0
    vehicle_id: str = ""
    is_noise: bool = False


def rules(request: ModelRequest) -> str:
    """Read what a customer said, where no model does."""
    said = request.said
    car = re.search(rf"({'|'.join(MAKES)})\s+(\w+)", said, re.IGNORECASE)
    year = re.search(r"\b(19|20)\d\d\b", said)
    vehicle_id = re.search(r"\b[A-Z]{3}-?\d{3}\b", said)
    is_noise = re.search(r"noise|rattl|knock|sound|bang|squeak", said, re.IGNORECASE)
    return json.dumps(
        {
            "make": car[1] if car else "",
            "model": car[2] if car else "",
            "year": int(year[0]) if year else 0,
            "vehicle_id": vehicle_id[0].replace("-", "") if vehicle_id else "",
            "is_noise": bool(is_noise),
        }
    )


reader = ModelLoop(
    instructions=(
        "Read what a customer of a car repair shop wrote. Fill in what it says about the car, and "
        "leave empty what it does not say. vehicle_id is the number on the registration. is_noise: "
        "the customer complains about a noise."
    ),
    output=Complaint,
    memory_tokens=0,
    script=rules,
)


@agent.skill(
    replies="task",
    tags=["cars", "repair"],
    examples=["My car is making a rattling noise", "My Toyota Camry 2018, XYZ123, rattles"],
)
async def receive(turn: Turn) -> list[Part]:
    """Receives a car: asks what the mechanic needs to know, and has it repaired."""
    said, files = turn.text, shown(turn.message)
    complaint = await read(turn, said)
    while not (complaint.make and complaint.model and complaint.vehicle_id):
        answer = await turn.ask(
            "Which car is it? Its make, model, year, and the number on the registration, please."
        )
        said, files = f"{said}\n{answer.text}", files + shown(answer)
        complaint = await read(turn, said)
    if complaint.is_noise and not files:
        question = "Can you send a picture or a video of the noise?"
        files = await asked_for(turn, question)
    order = {
        "vehicle_id": complaint.vehicle_id,
        "make": complaint.make,
        "model": complaint.model,
        "year": complaint.year,
    }
    await turn.step("told", turn.working, "The mechanic has your car.")
    try:
        answer = await turn.delegate(
            MECHANIC, [f"The customer says: {said}", Part(data=order), *files], progress=True
        )
    except RemoteTaskFailed as error:
        turn.fail(f"{error.task.text or 'The mechanic could not do it.'} You can fetch your car.")
    repaired: dict[str, Any] = answer.artifacts[-1].parts[0].data
    return [Part(text=told(repaired)), Part(data=repaired)]


async def read(turn: Turn, said: str) -> Complaint:
    """Return what a customer said about the car."""
    complaint: Complaint = await reader.run(turn, said, key=f"read {len(said)}", writes=False)
    return complaint


async def asked_for(turn: Turn, question: str) -> list[Part]:
    """Ask for a picture or a video, and once more for one that can be looked at."""
    for _ in range(2):
        answer = await turn.ask(question)
        files = shown(answer)
        if files or not any(part.is_file for part in answer.parts):
            return files
        question = "That is no picture, video or sound. Can you send one, or do without?"
    return []


def shown(message: Message) -> list[Part]:
    """Return the pictures, videos and sounds of a message."""
    return [p for p in message.parts if p.is_file and str(p.media_type).startswith(SEEN)]


def told(repaired: dict[str, Any]) -> str:
    """Say what was found, done, and what it costs."""
    found = f"Found: {'; '.join(repaired['found'])}."
    if not repaired["done"]:
        return f"{found} Nothing to repair, nothing to pay."
    return f"{found} Done: {'; '.join(repaired['done'])}. It is {repaired['price']:.2f} EUR."
