"""Converts money: the graph of LangGraph of examples/currency_langgraph.py.

    parley serve examples/travel_planner/exchange.py
    parley send "How much are 4000 USD in GBP?"

It needs ``pip install "parley-a2a[langgraph]" langchain-openai``; without, a plain agent has its
card, and knows fewer currencies.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import models

from parley import Agent, Execution
from parley.llm import ModelRequest, ScriptedReply, llm_agent

PER_EURO = {"EUR": 1.0, "USD": 1.0889, "GBP": 0.84183}


@dataclass
class Conversion:
    """The result."""

    amount: float
    currency: str
    rate: float


def convert(amount: float, source: str, target: str) -> Conversion:
    """Convert an amount between EUR, USD and GBP."""
    rate = PER_EURO[target] / PER_EURO[source]
    return Conversion(round(amount * rate, 2), target, round(rate, 6))


def rules(request: ModelRequest) -> ScriptedReply | str:
    """Do what a model would, where there is none."""
    if results := [each["content"] for each in request.messages if each.get("role") == "tool"]:
        return str(results[-1])
    amount = re.search(r"\d+(?:\.\d+)?", request.said)
    codes = re.findall(r"\b(?:EUR|USD|GBP)\b", request.said)
    if amount is None or len(codes) != 2 or not request.tools:
        return json.dumps({"amount": 0, "currency": "", "rate": 0})
    arguments = {"amount": float(amount[0]), "source": codes[0], "target": codes[1]}
    return ScriptedReply(tool_calls=[("convert", arguments)])


def without(missing: ImportError) -> Agent:
    """Return a plain agent with the same card."""
    logging.getLogger("travel").warning(
        "Currency agent: %s. Until then it runs as a plain agent.", missing
    )
    return llm_agent(
        "Currency agent",
        description="Converts amounts of money between currencies",
        instructions="Call the tool, and return its result unchanged.",
        tools=[convert],
        output=Conversion,
        script=rules,
        model=models.NAME,
        api_key=models.KEY,
        skill_id="run",
        execution=Execution(max_attempts=models.ATTEMPTS),
    )


sys.path.append(str(Path(__file__).parents[1]))
try:
    importlib.import_module("parley.integrations.langgraph")  # it says how to install LangGraph
    agent = importlib.import_module("currency_langgraph").agent
except ImportError as error:
    agent = without(error)
