"""Customer service that hands a conversation over to billing, with all that was said.

    parley serve examples/customer_service.py
    parley send "Has my order 42 been sent?"
    parley send --context-id CONTEXT "But I was charged twice!"

The second message is for billing: customer service hands the conversation over with all that was
said in it, so nobody asks for the order again. What the customer says next goes to billing, until
billing returns the conversation:

    parley send --context-id CONTEXT --task-id TASK "yes"
    parley send --context-id CONTEXT "And when will the parcel come?"
"""

import re

from parley import Agent, Retention, Turn
from parley.compose import Handoff, handoff

PARCELS = {"42": "is in Tampere, and comes tomorrow", "43": "was delivered on Monday"}
CHARGES = {"42": [30.0, 30.0], "43": [12.5]}
MONEY = ("charge", "invoice", "refund", "paid", "payment", "bill")

billing = Agent("Billing", description="Charges, invoices and refunds")
agent = Agent(
    "Customer service",
    description="Answers customers, and knows who else can",
    retention=Retention(history=True),
    handoffs=[billing],
)


@agent.skill(replies="task", default=True, tags=["customers"])
async def help_customer(turn: Turn) -> str | Handoff:
    """Answers questions about parcels; hands those about money over to billing."""
    if is_about_money(turn.text):
        return handoff(billing, note=f"asks about money: {turn.text}")
    number = order_in(turn.text, *(message.text for message in await turn.history()))
    if number not in PARCELS:
        answer = await turn.ask("Which order is it? Its number is on the receipt.")
        number = order_in(answer.text)
    if number not in PARCELS:
        return f"I know no order {number or 'without a number'}."
    return f"The parcel of order {number} {PARCELS[number]}."


@billing.skill(replies="task", default=True, tags=["billing"])
async def settle(turn: Turn) -> str | Handoff:
    """Explains charges, and gives money back that was charged twice, if the customer agrees."""
    if not is_about_money(turn.text):
        return handoff(back=True, note="no longer about money")
    handed = turn.handoff
    before = () if handed is None else tuple(message.text for message in handed.history)
    number = order_in(turn.text, *before)
    if number not in CHARGES:
        answer = await turn.ask("Which order is it?")
        number = order_in(answer.text)
    if number not in CHARGES:
        return f"I know no order {number or 'without a number'}."
    charges = CHARGES[number]
    if len(charges) < 2:
        return f"Order {number} was charged {len(charges)} times: {sum(charges):.2f} EUR in all."
    back = sum(charges[1:])
    answer = await turn.ask(
        f"Order {number} was charged {len(charges)} times. Shall I return {back:.2f} EUR?"
    )
    if not re.match(r"\s*(yes|please|ok)", answer.text, re.IGNORECASE):
        return "Then everything stays as it is."
    returned = await turn.step("returned", give_back, number)
    return f"{returned:.2f} EUR are on the way."


def is_about_money(text: str) -> bool:
    """Return whether billing is to answer."""
    return any(word in text.lower() for word in MONEY)


def give_back(number: str) -> float:
    """Return what was charged twice."""
    charges = CHARGES[number]
    back, CHARGES[number] = sum(charges[1:]), charges[:1]
    return back


def order_in(*texts: str) -> str:
    """Return the number of the order that the newest of some texts names; empty for none.

    The first text is the newest, the others are in the order in which they were said.
    """
    newest, *before = texts
    for text in (newest, *reversed(before)):
        if found := re.search(r"order (\d+)|^\s*(\d+)\s*$", text):
            return found[1] or found[2]
    return ""
