"""Knows what time it is anywhere, and what happened on a day like this. English and Chinese.

    parley serve examples/assistant.py
    parley send --stream "What happened on this day?"
    parley send "How many days are there from 2026-07-04 to 2026-12-24?"
    parley send "历史上的7月20日发生了什么?"

A language model answers, with three kinds of tools: a function (days_between), a tool of an MCP
server (events_on, in on_this_day.py), and a skill of another agent (current_time, in
time_agent.py). They are in this folder; CLOCK names a time agent that is elsewhere.
PARLEY_MODEL_URL names the endpoint of the model and PARLEY_MODEL the model, such as
http://localhost:11434/v1 and qwen3:8b for Ollama. Without an endpoint the rules below answer.
"""

import calendar
import json
import os
import re
import sys
from datetime import date
from pathlib import Path

from parley import McpServer
from parley.llm import ModelRequest, ScriptedReply, llm_agent

CLOCK = os.environ.get("CLOCK", "")
if not CLOCK:
    sys.path.insert(0, str(Path(__file__).parent))
    from time_agent import agent as time_agent


def days_between(first: date, last: date) -> int:
    """Tell how many days it is from one day to another.

    Args:
        first: such as 2026-07-04
        last: such as 2026-12-24

    """
    return (last - first).days


def rules(request: ModelRequest) -> ScriptedReply | str:
    """Answer as a model would, by rules: the next tool to call, or what the tools returned."""
    said, results = request.said, request.tool_results
    in_chinese = bool(re.search(r"[\u4e00-\u9fff]", said))
    asks_for_events = bool(re.search(r"happen|event|发生|历史|大事", said, re.IGNORECASE))
    days = [int(day) for day in re.findall(r"\d{4}-\d\d-\d\d", said) for day in day.split("-")]
    if results and results[-1].startswith("Error"):
        return results[-1]
    if len(days) == 6 and not asks_for_events:
        if results:
            return f"相差{results[0]}天。" if in_chinese else f"It is {results[0]} days."
        first, last = re.findall(r"\d{4}-\d\d-\d\d", said)
        return ScriptedReply(tool_calls=[("days_between", {"first": first, "last": last})])
    if asks_for_events:
        if results and results[-1].startswith("{"):
            return told(json.loads(results[-1]), in_chinese)
        day = day_in(said) or day_in(results[-1] if results else "")
        if day is not None:
            language = "zh" if in_chinese else "en"
            arguments = {"month": day[0], "day": day[1], "language": language}
            return ScriptedReply(
                thinking="I look up that day. ", tool_calls=[("events_on", arguments)]
            )
    if results:
        return results[-1]
    return ScriptedReply(
        thinking="First I need the date. " if asks_for_events else "The clock knows. ",
        tool_calls=[("current_time", {"message": said})],
    )


MONTHS = list(calendar.month_name)


def day_in(text: str) -> tuple[int, int] | None:
    """Return the month and the day that a text names: July 20, 20 July, 7月20日, 2026-07-20."""
    if found := re.search(r"(\d+)月(\d+)[日号]|\d{4}-(\d\d)-(\d\d)", text):
        month, day = [int(each) for each in found.groups() if each]
        return month, day
    names = "|".join(MONTHS[1:])
    if found := re.search(rf"({names}) (\d{{1,2}})\b|\b(\d{{1,2}}) ({names})", text):
        return MONTHS.index(found[1] or found[4]), int(found[2] or found[3])
    return None


def told(found: dict[str, object], in_chinese: bool) -> str:
    """Say what happened on a day."""
    month, day, year, event = found["month"], found["day"], found["year"], found["event"]
    if in_chinese:
        return f"{year}年{month}月{day}日：{event}。"
    return f"On {day} {MONTHS[int(str(month))]} {year}: {event}."


agent = llm_agent(
    "Assistant",
    description="Tells the time anywhere, and what happened on a day like this",
    instructions=(
        "You tell the time, count days, and tell what happened on a day of the year. Use your "
        "tools, do not guess. To know what today is, ask for the current time. Answer briefly, in "
        "the language of the question."
    ),
    tools=[
        days_between,
        McpServer.stdio(sys.executable, str(Path(__file__).with_name("on_this_day.py"))),
        CLOCK or time_agent,
    ],
    script=rules,
    tags=["time", "date", "history"],
    examples=["What happened on this day?", "What time is it in Tokyo?", "历史上的今天发生了什么?"],
    version="1.0.0",
)
