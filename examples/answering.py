"""Answers questions with three agents: one finds the intent, one searches, one writes the answer.

    parley serve examples/answering.py
    parley send "How long does delivery to Norway take?"
    parley send "Can I get my money back?"

Each agent has its own tasks, and each could run elsewhere: put its address in its place. A question
that fits several intents is asked back, and the answer goes to the agent that asked.
"""

from dataclasses import asdict, dataclass
from typing import Any

from parley import Agent, Turn
from parley.compose import sequence

INTENTS = {
    "delivery": ("deliver", "delivery", "ship", "shipping", "arrive"),
    "returns": ("return", "refund", "back", "exchange"),
    "payment": ("pay", "payment", "card", "invoice"),
}


@dataclass(frozen=True)
class Entry:
    """An article of the knowledge base."""

    intent: str
    title: str
    text: str


KNOWLEDGE = (
    Entry("delivery", "Delivery times", "Delivery takes 2 days at home and 5 days abroad."),
    Entry("delivery", "Delivery costs", "Delivery is free from 40 EUR."),
    Entry("returns", "Refunds", "You get your money back within 14 days after a return."),
    Entry("payment", "Ways to pay", "We take cards, transfers and invoices."),
)

intent = Agent("Intent", description="Finds out what a question is about")
knowledge = Agent("Knowledge base", description="Searches articles by intent and words")
answer = Agent("Answer", description="Writes an answer from articles")


@intent.skill(replies="task")
async def find_intent(turn: Turn) -> dict[str, str]:
    """Names the intent of a question, and asks when it is not clear."""
    found = [name for name, stems in INTENTS.items() if words(turn.text) & set(stems)]
    if len(found) != 1:
        reply = await turn.ask(f"Is it about {', '.join(found or INTENTS)}?")
        found = [name for name in INTENTS if name in reply.text.lower()]
    if not found:
        turn.reject("I know about delivery, returns and payment.")
    return {"intent": found[0], "question": turn.text}


@knowledge.skill
def search(intent: str, question: str) -> dict[str, Any]:
    """Returns the articles of an intent, those with most words of the question first."""
    asked = words(question)
    entries = [entry for entry in KNOWLEDGE if entry.intent == intent]
    entries.sort(key=lambda entry: -len(words(f"{entry.title} {entry.text}") & asked))
    return {"question": question, "articles": [asdict(entry) for entry in entries[:2]]}


@answer.skill
def write(question: str, articles: list[dict[str, str]]) -> str:
    """Answers a question from the articles that were found."""
    said = " ".join(article["text"] for article in articles)
    return f"{said} (Articles: {', '.join(article['title'] for article in articles)})"


def words(text: str) -> set[str]:
    """Return the words of a text."""
    return {word.strip(".,?!").lower() for word in text.split()}


agent = sequence(
    intent, knowledge, answer, name="Answering", description="Answers questions about our shop"
)
