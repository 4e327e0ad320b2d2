"""Changes a customer's address, once a document proves it and a clerk has looked at that.

    parley serve examples/address_change.py
    parley send '{"customer": "C-17", "street": "Aleksanterinkatu 1", "city": "Helsinki"}'

It asks for what is missing, here a phone number, and then for a document, which is sent as a file:

    parley send --task-id TASK "my electricity bill" --file bill.pdf

A passport proves who somebody is, not where: the wrong kind of document is asked for again. A clerk
then decides, at the address that the log shows and that only the clerk's office gets:

    curl --json '{"verified": true, "clerk": "Maija"}' ADDRESS

Nothing is changed before that. Whoever proves nothing, or is never verified, keeps the old address:
the task is rejected after 14 days, and cannot end in any other way.
"""

import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert

from parley import Agent, Execution, Message, Turn

PROOFS = ("electricity bill", "water bill", "gas bill", "bank statement", "registration")
"""Documents that name an address."""

NO_PROOFS = ("passport", "driving licence", "library card", "photo")
"""What people send instead."""

FORMATS = ("application/pdf", "image/jpeg", "image/png")
TRIES = 3
PATIENCE = timedelta(days=14)

Phone = Annotated[str, Meta(pattern=r"^\+?[0-9][0-9 -]{5,19}$", description="With country code")]

agent = Agent(
    name="Address change",
    description="Changes the address of a customer, with proof",
    input_modes=["text", "data", "file"],
    execution=Execution(input_timeout=PATIENCE),
)
addresses = {"C-17": "Mannerheimintie 12, Helsinki"}
log = logging.getLogger("address_change")


@dataclass
class Change:
    """A change of address."""

    customer: Annotated[str, Meta(pattern=r"^C-[0-9]+$", description="Such as C-17")]
    street: Annotated[str, Meta(min_length=3)]
    city: Annotated[str, Meta(min_length=2)]
    phone: Phone


@dataclass
class Decision:
    """What a clerk decides. Only ``true`` verifies: the word "no" is none."""

    verified: bool
    clerk: Annotated[str, Meta(min_length=1)]
    reason: str = "no reason given"


@agent.skill(replies="task", invalid_input="ask", tags=["customers"])
async def change_address(change: Change, turn: Turn) -> dict[str, str]:
    """Changes the address of a customer; needs a document with the new address on it."""
    if change.customer not in addresses:
        turn.reject(f"There is no customer {change.customer}.")
    document = await proof(turn)
    decision = await verified(turn, change, document)
    if not decision.verified:
        turn.reject(f"The document was not accepted: {decision.reason}.")
    new = f"{change.street}, {change.city}"
    await turn.step("changed", store, change.customer, new)
    return {"customer": change.customer, "address": new, "verified_by": decision.clerk}


async def proof(turn: Turn) -> str:
    """Return the kind of the document that the caller sent; ask up to three times."""
    question = f"Send a document with the new address on it: {', '.join(PROOFS)}."
    for _ in range(TRIES):
        answer = await turn.ask(question)
        kind, problem = judged(answer)
        if not problem:
            return kind
        question = f"{problem} Send {', '.join(PROOFS[:-1])} or {PROOFS[-1]}, as PDF, JPEG or PNG."
    turn.reject("No document proves the address: it was not changed.")


def judged(answer: Message) -> tuple[str, str]:
    """Return the kind of a document, and what is wrong with it; empty if it will do."""
    files = [part for part in answer.parts if part.is_file]
    if not files:
        return "", "There was no file in your message."
    if any(file.media_type not in FORMATS for file in files):
        return "", f"I cannot read {files[0].media_type or 'a file without a type'}."
    said = " ".join([answer.text, *(file.filename for file in files)]).lower()
    said = re.sub(r"[_-]+", " ", said)
    for kind in NO_PROOFS:
        if kind in said:
            return kind, f"A {kind} does not say where you live."
    for kind in PROOFS:
        if kind in said or kind.replace(" bill", "") in said:
            return kind, ""
    return "", "I do not know what kind of document this is: say it in words."


async def verified(turn: Turn, change: Change, document: str) -> Decision:
    """Wait for the clerk's decision; without one the change is rejected."""
    key = f"address:{turn.task_id}"
    place = await turn.callback(key, expires=PATIENCE)
    log.warning("%s sent a document (%s); decide at %s", change.customer, document, place)
    try:
        value = await turn.wait_event(
            key, timeout=PATIENCE, message=f"A clerk checks your {document}"
        )
    except TimeoutError:
        turn.reject("Nobody could verify the document within 14 days: nothing was changed.")
    try:
        return convert(form_in(value), Decision)
    except ValidationError as error:
        log.warning("the decision on %s is none: %s", turn.task_id, error)
        return Decision(verified=False, clerk="nobody", reason="the decision cannot be read")


def form_in(value: Any) -> Any:
    """Return what the clerk sent: JSON, or the data part of a message, as a form makes it."""
    parts = value.get("parts") if isinstance(value, dict) else None
    for part in parts if isinstance(parts, list) else [value]:
        if isinstance(part, dict) and isinstance(part.get("data"), dict):
            return part["data"]
    return value


def store(customer: str, address: str) -> str:
    """Store the new address, and return the old one."""
    old, addresses[customer] = addresses[customer], address
    return old
