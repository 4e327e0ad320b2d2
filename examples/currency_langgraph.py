"""Changes currencies: a graph of LangGraph that asks for what is missing, served as an agent.

    parley serve examples/currency_langgraph.py
    parley send "How much are 100 euros?"

The graph is the ordinary one: nothing in it knows of A2A. Its question is an ``interrupt``, so the
task waits for its caller; what it writes to its stream is progress; its output is data with a
schema. The model is the one behind ``PARLEY_MODEL_URL``, any OpenAI-compatible endpoint; without
one a script answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from parley.integrations import langgraph
from parley.llm.model import ModelRequest, ScriptedReply, text_of
from parley.testing.model_endpoint import ModelEndpoint

DAY = "2025-03-14"
PER_EURO = {
    "EUR": 1.0, "USD": 1.0889, "JPY": 161.88, "CZK": 25.014, "DKK": 7.4601, "GBP": 0.84183,
    "HUF": 399.48, "PLN": 4.1723, "RON": 4.9768, "SEK": 11.0538, "CHF": 0.9641, "ISK": 145.90,
    "NOK": 11.6200, "TRY": 39.9381, "AUD": 1.7237,
}  # fmt: skip
"""The reference rates of the European Central Bank of that day."""


class Wish(BaseModel):
    """What the user wants to change. What was not said is left out."""

    amount: float | None = Field(None, description="how much")
    source: str | None = Field(None, description="ISO code of the currency they have")
    target: str | None = Field(None, description="ISO code of the currency they want")


class Conversion(TypedDict):
    """The result."""

    amount: float
    currency: str
    rate: float
    day: str


class State(MessagesState):
    """The conversation, and what is known of the wish and of the result."""

    wish: dict[str, Any]
    amount: float
    currency: str
    rate: float
    day: str


class Output(MessagesState, Conversion):
    """What callers get: the conversation's last message, and the result as data."""


UNDERSTAND = SystemMessage(
    f"Note what the user wants to change. The currencies are {', '.join(PER_EURO)}. "
    "Note nothing that they did not say."
)
TELL = SystemMessage("Tell the user the result of the conversion in one short sentence.")

QUESTIONS = {
    "amount": "How much do you want to change?",
    "source": "Which currency do you have?",
    "target": "Which currency do you want?",
}


def build(model: ChatOpenAI) -> StateGraph:
    """Return the graph with a model."""
    reader = model.with_structured_output(Wish, method="function_calling")

    async def understand(state: State) -> dict[str, Any]:
        wish = await reader.ainvoke([UNDERSTAND, *state["messages"]])
        found = wish.model_dump(exclude_none=True) if isinstance(wish, Wish) else {}
        known = {k: v for k, v in found.items() if k == "amount" or v in PER_EURO}
        return {"wish": known}

    def ask(state: State) -> dict[str, Any]:
        missing = next(key for key in QUESTIONS if key not in state["wish"])
        choices = {} if missing == "amount" else {"choices": sorted(PER_EURO)}
        said = interrupt({"question": QUESTIONS[missing], **choices})
        return {"messages": [HumanMessage(str(said))]}

    def look_up(state: State) -> dict[str, Any]:
        wish = state["wish"]
        get_stream_writer()(f"Looking up {wish['source']} and {wish['target']}")
        rate = PER_EURO[wish["target"]] / PER_EURO[wish["source"]]
        return {
            "amount": round(wish["amount"] * rate, 2),
            "currency": wish["target"],
            "rate": round(rate, 6),
            "day": DAY,
        }

    async def tell(state: State) -> dict[str, Any]:
        wish = state["wish"]
        fact = (
            f"{wish['amount']:g} {wish['source']} are {state['amount']:.2f} {state['currency']} "
            f"at the rate of {state['day']}"
        )
        return {"messages": [await model.ainvoke([TELL, HumanMessage(fact)])]}

    def is_complete(state: State) -> str:
        return "look_up" if set(QUESTIONS) <= set(state["wish"]) else "ask"

    graph = StateGraph(State, input_schema=MessagesState, output_schema=Output)
    graph.add_node("understand", understand)
    graph.add_node("ask", ask)
    graph.add_node("look_up", look_up)
    graph.add_node("tell", tell)
    graph.add_edge(START, "understand")
    graph.add_conditional_edges("understand", is_complete, ["ask", "look_up"])
    graph.add_edge("ask", "understand")
    graph.add_edge("look_up", "tell")
    return graph


# -- without an endpoint ---------------------------------------------------------------------------

NAMES = {"euro": "EUR", "dollar": "USD", "yen": "JPY", "pound": "GBP", "franc": "CHF"}


def script(request: ModelRequest) -> ScriptedReply | str:
    """Do what a model would: read the wish out of the conversation, or say the result."""
    if not request.tools:
        return f"{request.said}."
    said = [text_of(each) for each in request.messages if each.get("role") == "user"]
    wish: dict[str, Any] = {}
    for text in said:
        if amount := re.search(r"\d+(?:\.\d+)?", text):
            wish["amount"] = float(amount[0])
        words = re.findall(r"\b[A-Z]{3}\b|" + "|".join(NAMES), text, re.IGNORECASE)
        codes = [
            code for word in words if (code := NAMES.get(word.lower(), word.upper())) in PER_EURO
        ]
        wants = re.search(r"\b(?:to|in|into)\s+(\w{3,})", text)
        for code in (each for each in codes if each in PER_EURO):
            is_target = wants is not None and wants[1].lower().startswith(code.lower())
            is_target = is_target or "source" in wish
            wish["target" if is_target else "source"] = code
    return ScriptedReply(tool_calls=[("Wish", wish)])


@contextmanager
def endpoint() -> Iterator[str]:
    """Give the address of a model: of the one that is configured, else of the script's."""
    if url := os.environ.get("PARLEY_MODEL_URL"):
        yield url
        return
    with ModelEndpoint(script) as scripted:
        yield scripted.url


@asynccontextmanager
async def currency() -> AsyncIterator[StateGraph]:
    """Converts amounts of money between currencies, at rates of the European Central Bank."""
    name = os.environ.get("PARLEY_MODEL", "scripted-1")
    key = os.environ.get("PARLEY_MODEL_KEY", "none")
    with endpoint() as url:
        yield build(ChatOpenAI(model=name, base_url=url, api_key=key, stream_usage=True))


agent = langgraph.agent(
    currency, name="Currency agent", tags=["money"], examples=["How much are 100 euros in yen?"]
)
