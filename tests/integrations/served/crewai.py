"""Agents, crews and flows of CrewAI, in the shapes of its tutorials."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import re
import sys
from unittest import mock

sys.path.pop(0)  # this folder has a file of the framework's name
sys.path.append(os.path.dirname(__file__))
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
os.environ |= {"CREWAI_TRACING_ENABLED": "false", "CREWAI_STORAGE_DIR": "parley-test"}
os.environ["HOME"] = os.environ["PARLEY_TEST_FILES"]

from crewai import LLM, Agent, Crew, Flow, Process, Task
from crewai.flow.flow import listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.tools import tool
from pydantic import BaseModel
from serving import MODEL_URL, add, book, note, page, serve, wait

import parley
from parley.integrations import crewai


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    celsius: float


llm = LLM(model="openai/gpt-4o", base_url=MODEL_URL, api_key="none")


def person(role, tools=()):
    about = {"role": role, "goal": f"{role} things", "backstory": "Likes it"}
    return Agent(**about, llm=llm, tools=list(tools), max_iter=1000)


assistant = person("assistant", [tool("add")(add), tool("book")(book), tool("wait")(wait)])
forecaster = person("forecaster")
forecast = Task(
    description="{message}",
    expected_output="The weather",
    agent=forecaster,
    output_pydantic=Weather,
)
writer = person("writer")
draft = Task(description="{topic}", expected_output="A text", agent=writer, human_input=True)


class Letters(Flow):
    """Writes a letter and sends it."""

    @start()
    def begin(self):
        note("flow", "begun")
        return self.ask("To whom?")

    @human_feedback(message="May it be sent?")
    @listen(begin)
    def write(self, to):
        note("flow", "written")
        return f"Dear {to}"

    @listen(write)
    def send(self, feedback):
        note("flow", "sent")
        return f"{feedback.output}: {feedback.feedback}"


class Team(Flow):
    """Asks an agent that it makes, and does what it says."""

    @start()
    def ask(self):
        said = person("member").kickoff(self.state["message"]).raw
        return None if "nothing" in said else said


class Diary(BaseModel):
    days: list[str] = []
    kept: str = ""


class Calendar(Flow[Diary]):
    """Keeps a diary in its state."""

    @start()
    def begin(self):
        return "A day"

    @human_feedback(message="Which one?")
    @listen(begin)
    def write(self, day):
        return day

    @listen(write)
    def end(self, feedback):
        self.state.days.append(feedback.feedback)
        if feedback.feedback == "large":
            self.state.kept = "x" * 2_000_000
        return ", ".join(self.state.days)


reader = LLM(model="openai/gpt-3.5-turbo", base_url=MODEL_URL, api_key="none")
blind = Agent(role="blind", goal="Read", backstory="Reads", llm=reader)
with mock.patch("parley.integrations.crewai.serving.crewai_files", None):  # as if not installed
    bare = crewai.agent(person("bare"))
plain = parley.Agent("Plain", description="Uses a tool in two runs of its own, without the adapter")


@plain.skill
async def run(message: str) -> str:
    """Asks the weather in one run; another run uses the same tool before the answer."""
    (shared,) = await crewai.tools(os.environ["PARLEY_TEST_REMOTE"])

    def outside(**arguments):
        return contextvars.Context().run(shared._run, **arguments)  # it knows no turn

    asked = await asyncio.to_thread(outside, message="the weather")
    other = await asyncio.to_thread(outside, message="birds")
    task = re.search(r"The task (\S+) waits", asked)[1]
    answer = await asyncio.to_thread(outside, message="Rome", task=task)
    return json.dumps([asked.splitlines()[0], other, answer])


remote = asyncio.run(crewai.tools(os.environ["PARLEY_TEST_REMOTE"]))
on_page = page("crewai")
serve(
    {
        "agent": crewai.agent(assistant, approve=["book"]),
        "structured": crewai.agent(Crew(name="forecast", agents=[forecaster], tasks=[forecast])),
        "caller": crewai.agent(person("caller", remote)),
        "crew": crewai.agent(
            Crew(name="writers", agents=[writer], tasks=[draft], process=Process.sequential)
        ),
        "flow": crewai.agent(Letters),
        "typed": crewai.agent(person("typed"), response_format=Weather),
        "bare": bare,
        "blind": crewai.agent(blind),
        "team": crewai.agent(Team),
        "calendar": crewai.agent(Calendar),
        "plain": plain,
        "page": on_page["served"],
        "page-caller": asyncio.run(on_page["planner"](os.environ["PARLEY_TEST_REMOTE"])),
    }
)
