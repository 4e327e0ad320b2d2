"""Graphs of LangGraph, served."""
# ruff: noqa: E402, this file has the name of what it imports

from __future__ import annotations

import sys

import serving
from serving import FILES, MODEL_URL, add, book, note, serve, wait

del sys.path[0]  # or this file would be the framework

import asyncio
import contextvars
import importlib.util
import json
import operator
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager, chdir, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Annotated

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from parley import Agent, Caller, Part, Turn
from parley.integrations import langgraph
from parley.integrations.langgraph.running import ServedGraph
from parley.integrations.langgraph.threads import ContextCheckpoints
from parley.integrations.serving import framework_agent
from parley.llm.current_turn import current_turn, within
from parley.llm.run_output import RunOutput
from parley.security import ApiKey

REMOTE = os.environ["PARLEY_TEST_REMOTE"]
DATABASE = os.environ["PARLEY_TEST_DATABASE"]


model = ChatOpenAI(
    model="scripted-1", base_url=MODEL_URL, api_key="none", max_retries=0, stream_usage=True
)


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    celsius: float


def assistant(saver: object = None) -> object:
    """Adds, waits, and books what its caller allows."""
    asks = HumanInTheLoopMiddleware(interrupt_on={"book": True})
    tools = [add, book, wait]
    return create_agent(model, tools, middleware=[asks], name="Assistant", checkpointer=saver)


agent = assistant()

structured = create_agent(model, [], response_format=Weather, name="Weather")
provided = create_agent(model, [], response_format=ProviderStrategy(Weather), name="Provided")


# -- a state that is no conversation ---------------------------------------------------------------


class Wish(TypedDict):
    where: str


class Trip(TypedDict):
    where: str
    facts: Annotated[list[str], operator.add]


class Plan(TypedDict):
    facts: list[str]


def party(state: Trip) -> dict:
    """Asks for a number, and LangGraph checks that it is one."""
    people = interrupt("How many are you?", response_schema=int)
    return {"facts": [f"{people} people"]}


def names(state: Trip) -> dict:
    """Asks the same twice in one node."""
    first = interrupt({"question": "Who comes along?", "field": "name"})
    second = interrupt({"question": "Who comes along?", "field": "name"})
    return {"facts": [f"{first} and {second}"]}


def total(state: Trip) -> dict:
    return {"facts": [f"to {state['where']}"]}


trip = StateGraph(Trip, input_schema=Wish, output_schema=Plan)
trip.add_node("party", party)
trip.add_node("names", names)
trip.add_node("total", total)
trip.add_edge(START, "party")
trip.add_edge(START, "names")
trip.add_edge(["party", "names"], "total")


# -- subgraphs, steps, files -----------------------------------------------------------------------


def review(state: MessagesState) -> dict:
    note("add", "review")
    said = interrupt({"question": "Is this right?"})
    return {"messages": [AIMessage(f"You said {said}.")]}


inner = StateGraph(MessagesState)
inner.add_node("review", review)
inner.add_edge(START, "review")


def call_review(state: MessagesState) -> dict:
    """Runs the other graph by itself, in a thread."""
    return {"messages": reviewing.invoke({"messages": state["messages"]})["messages"]}


reviewing = inner.compile()
calling = StateGraph(MessagesState)
calling.add_node("call_review", call_review)
calling.add_edge(START, "call_review")


def draft(state: MessagesState) -> dict:
    note("book", "draft")
    get_stream_writer()("drafting")
    get_stream_writer()({"percent": 50})
    get_stream_writer()(Part(raw=b"draft 1", media_type="text/plain", filename="draft.txt"))
    image = {"type": "image", "base64": "iVBORw==", "mime_type": "image/png"}
    return {"messages": [AIMessage([{"type": "text", "text": "A sketch:"}, image])]}


outer = StateGraph(MessagesState)
outer.add_node("draft", draft)
outer.add_node("reviewed", inner.compile())
outer.add_edge(START, "draft")
outer.add_edge("draft", "reviewed")


def asks_twice(state: MessagesState) -> dict:
    """Asks for data, and asks the model between."""
    first = interrupt({"question": "First?"})["said"]
    model.invoke("break off once")
    second = interrupt({"question": "Second?"})["said"]
    return {"messages": [AIMessage(f"{first} and {second}")]}


asking_twice = StateGraph(MessagesState).add_node(asks_twice).add_edge(START, "asks_twice")
twice = StateGraph(MessagesState).add_node("within", asking_twice.compile())
twice.add_edge(START, "within")


# -- a state that tasks at the same time change ----------------------------------------------------


class Facts(TypedDict):
    facts: Annotated[list[str], operator.add]
    count: Annotated[int, operator.add]
    newest: str


class FactsState(MessagesState):
    facts: Annotated[list[str], operator.add]
    count: Annotated[int, operator.add]
    newest: str


def learn(state: FactsState) -> dict:
    """Learns what a message says to add, or else what the caller answers."""
    note("begin", "; ".join(each.text for each in state["messages"]))
    command, _, fact = state["messages"][-1].text.partition(" ")
    if command == "want":
        fact = interrupt({"question": "What is it?"})["fact"]
    elif command != "add":
        fact = interrupt("What is it?")
    said = AIMessage(f"said {fact}")
    return {"facts": [fact], "count": 1, "newest": fact, "messages": [said]}


learning = StateGraph(FactsState, input_schema=MessagesState, output_schema=Facts)
learning.add_node("learn", learn)
learning.add_edge(START, "learn")


def learner(saver: object) -> object:
    return learning.compile(checkpointer=saver)


@asynccontextmanager
async def async_sqlite(make: Callable[..., object]):
    """Keeps its threads in a file."""
    name = str(FILES / f"{make.__name__}-async.db")
    async with AsyncSqliteSaver.from_conn_string(name) as saver:
        yield make(saver)


@contextmanager
def postgres(make: Callable[..., object]):
    """Keeps its threads in a database."""
    with PostgresSaver.from_conn_string(DATABASE) as saver:
        saver.setup()
        yield make(saver)


@asynccontextmanager
async def async_postgres(make: Callable[..., object]):
    """Keeps its threads in a database."""
    async with AsyncPostgresSaver.from_conn_string(DATABASE) as saver:
        await saver.setup()
        yield make(saver)


def saved_by(make: Callable[..., object]) -> dict[str, Agent]:
    """Return a graph with each saver that LangGraph ships."""
    file = sqlite3.connect(FILES / f"{make.__name__}.db", check_same_thread=False)
    graphs = {
        "state": make(InMemorySaver()),
        "sqlite": make(SqliteSaver(file)),
        "async-sqlite": partial(async_sqlite, make),
    }
    if DATABASE:
        graphs["postgres"] = partial(postgres, make)
        graphs["async-postgres"] = partial(async_postgres, make)
    return {
        name: langgraph.agent(each, name=f"{make.__name__} on {name}")
        for name, each in graphs.items()
    }


# -- one agent on two replicas, each with its own locks --------------------------------------------

PLAIN = dict.fromkeys(("config", "context", "inputs", "resume")) | {"durability": "sync"}

replicas = {name: ServedGraph(learning, **PLAIN) for name in ("left", "right")}
both_end = asyncio.Barrier(2)


def settle_together(checkpoints: ContextCheckpoints) -> None:
    """Let the first task that waited on a replica settle when that of the other does."""
    settle, waits = checkpoints.settle, [True]

    async def settled(*arguments: str) -> bool:
        if current_turn().message.text in replicas and waits:
            waits.clear()
            await both_end.wait()
        return await settle(*arguments)

    checkpoints.settle = settled


for each in replicas.values():
    settle_together(each.checkpoints)


async def on_a_replica(turn: Turn, output: RunOutput) -> None:
    await replicas.get(turn.message.text, replicas["left"]).run(turn, output)


# -- the graph of textbooks, stopped before its tools ----------------------------------------------


def chatbot(state: MessagesState) -> dict:
    return {"messages": [model.bind_tools([add, book]).invoke(state["messages"])]}


textbook = StateGraph(MessagesState)
textbook.add_node("chatbot", chatbot)
textbook.add_node("tools", ToolNode([add, book]))
textbook.add_edge(START, "chatbot")
textbook.add_conditional_edges("chatbot", tools_condition)
textbook.add_edge("tools", "chatbot")


@asynccontextmanager
async def saved():
    """Keeps its checkpoints in a file of its own."""
    async with AsyncSqliteSaver.from_conn_string(str(FILES / "checkpoints.db")) as saver:
        yield inner.compile(checkpointer=saver)


# -- a crash between nodes -------------------------------------------------------------------------


class Steps(TypedDict):
    done: Annotated[list[str], operator.add]


def step(name: str):
    def run(state: Steps) -> dict:
        note("add", name)
        if name == "second" and not (FILES / "gate").exists():
            note("wait", "second")
            threading.Event().wait()
        return {"done": [name]}

    return run


steps = StateGraph(Steps)
for each in ("first", "beside", "second", "third"):
    steps.add_node(each, step(each))
steps.add_edge(START, "first")
steps.add_edge(START, "beside")
steps.add_edge(["first", "beside"], "second")
steps.add_edge("second", "third")


@task
def priced(item: str) -> int:
    note("add", f"priced {item}")
    return len(item)


@entrypoint()
async def workflow(order: dict[str, str]) -> dict[str, object]:
    """Sells things, by the functional API."""
    price = await priced(order["item"])
    agreed = interrupt({"question": f"It is {price}. Agreed?"}, response_schema=bool)
    return {"item": order["item"], "sold": agreed}


# -- a turn whose context takes so many writes, and then no more -----------------------------------


class Cut:
    """Such a turn."""

    def __init__(self, turn: Turn, writes: int) -> None:
        self._turn = turn
        self._writes = writes

    def __getattr__(self, name: str) -> object:
        return getattr(self._turn, name)

    def _take(self) -> None:
        if self._writes == 0:
            raise ConnectionAbortedError
        self._writes -= 1

    async def remember(self, *arguments: object) -> None:
        self._take()
        await self._turn.remember(*arguments)

    async def update(self, *arguments: object) -> object:
        self._take()
        return await self._turn.update(*arguments)


two_steps = StateGraph(Steps)
for each in ("one", "two"):
    two_steps.add_node(each, step(each))
two_steps.add_edge(START, "one")
two_steps.add_edge("one", "two")
tearing = ServedGraph(two_steps, **PLAIN | {"inputs": lambda turn: {"done": []}})
torn = Agent("Torn")


@torn.skill(replies="task")
async def tear(turn: Turn, writes: int) -> None:
    """Run a graph that is cut off after so many writes, then wait, and go on without a cut."""
    try:
        with within(Cut(turn, writes)):
            await tearing.run(turn, RunOutput(turn))
    except ConnectionAbortedError:
        await turn.ask("Cut off. Go on?")
        with within(turn):
            await tearing.run(turn, RunOutput(turn))


# -- a context of the graph's own ------------------------------------------------------------------


@dataclass
class Manner:
    greeting: str = "Welcome"


def greet(state: MessagesState, runtime: Runtime[Manner]) -> dict:
    return {"messages": [AIMessage(f"{runtime.context.greeting}.")]}


greeter = StateGraph(MessagesState, context_schema=Manner)
greeter.add_node("greet", greet)
greeter.add_edge(START, "greet")
unkept = greeter.compile(checkpointer=False)


# -- the user's own callbacks, and a model that says no finish reason ------------------------------


class Heard(BaseCallbackHandler):
    def on_llm_end(self, response: object, **options: object) -> None:
        note("begin", "heard")


heard = textbook.compile(checkpointer=InMemorySaver())


def mumble(state: MessagesState) -> dict:
    return {"messages": [FakeListChatModel(responses=["I am no model."]).invoke("")]}


mumbling = StateGraph(MessagesState).add_node(mumble).add_edge(START, "mumble")


def think(state: MessagesState) -> None:
    model.with_config(tags=["nostream"]).invoke("hello")


silent = StateGraph(MessagesState).add_node(think).add_edge(START, "think")


# -- states that text fills, or does not -----------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Amount(TypedDict):
    amount: int


class Painted(TypedDict, total=False):
    colour: Colour
    done: list[str]


class Given(TypedDict):
    given: str


def filled(kind: type) -> StateGraph:
    def fill(state: dict) -> dict:
        return {"given": repr(state)}

    graph = StateGraph(Given, input_schema=kind)
    return graph.add_node(fill, input_schema=kind).add_edge(START, "fill")


# -- callers ---------------------------------------------------------------------------------------


@asynccontextmanager
async def caller():
    """Knows whom to ask."""
    yield create_agent(model, await langgraph.tools(REMOTE), name="Caller")


@asynccontextmanager
async def unsaved():
    """Knows whom to ask, and keeps nothing."""
    yield create_agent(model, await langgraph.tools(REMOTE), checkpointer=False)


pipeline = StateGraph(MessagesState)
pipeline.add_node("remote", langgraph.node(REMOTE, name="Remote"))
pipeline.add_edge(START, "remote")
pipeline.add_edge("remote", END)

plain = Agent("Plain", description="Runs graphs by themselves, without the adapter")


@plain.skill
async def run(message: str) -> str:
    """Asks the remote agent about the weather, with its tool and its node, outside of a turn."""

    async def outside() -> list[str]:
        told = []
        tools = await langgraph.tools(REMOTE)
        for graph in (
            create_agent(model, tools, checkpointer=InMemorySaver()),
            pipeline.compile(checkpointer=InMemorySaver()),
        ):
            config = {"configurable": {"thread_id": "1"}}
            asked = await graph.ainvoke({"messages": ["agent, how is the weather?"]}, config)
            told.append(asked["__interrupt__"][0].value["question"])
            streamed = []
            async for mode, data in graph.astream(
                Command(resume="Oslo"), config, stream_mode=["values", "custom"]
            ):
                if mode == "custom":
                    streamed.append(data)
                else:
                    answer = data["messages"][-1].text
            told.append(answer)
        return told

    ran = asyncio.create_task(outside(), context=contextvars.Context())  # it knows no turn
    return json.dumps(await ran)


def example(name: str) -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


shared = create_agent(model, [], checkpointer=InMemorySaver())
keys = {sha256(name.encode()).hexdigest(): Caller(name) for name in ("ada", "bob")}
blocking = SqliteSaver(sqlite3.connect(FILES / "textbook.db", check_same_thread=False))


def served() -> dict[str, Agent]:
    conf = FILES / "langgraph.json"
    page = FILES / "graphs.py"
    if not conf.exists():
        page.write_text(
            "from langgraph.graph import MessagesState, StateGraph, START\n"
            "def echo(state): return {'messages': [('ai', state['messages'][-1].text.upper())]}\n"
            "def graph(config):\n"
            "    'Says it louder.'\n"
            "    graph = StateGraph(MessagesState).add_node(echo).add_edge(START, 'echo')\n"
            "    return graph.compile()\n"
        )
        conf.write_text(json.dumps({"graphs": {"echo": "./graphs.py:graph"}}))
    with chdir(FILES):
        assistants = serving.documented(serving.COMING_FROM, "graphs_on_parley.py")["agents"]
    return {
        "agent": langgraph.agent(agent),
        "structured": langgraph.agent(structured),
        "provided": langgraph.agent(provided),
        "caller": langgraph.agent(caller),
        "unsaved": langgraph.agent(unsaved),
        "trip": langgraph.agent(trip, name="Trip"),
        "nested": langgraph.agent(outer, name="Nested"),
        "textbook": langgraph.agent(
            textbook.compile(checkpointer=blocking, interrupt_before=["tools"]), name="Textbook"
        ),
        "replicas": framework_agent(on_a_replica, name="Replicas"),
        "torn": torn,
        "shared-state": langgraph.agent(learning, name="Learning"),
        **{f"saved-{name}": each for name, each in saved_by(learner).items()},
        **{f"agent-{name}": each for name, each in saved_by(assistant).items()},
        "greeter": langgraph.agent(greeter, name="Greeter"),
        "unkept": langgraph.agent(
            unkept, name="Unkept", context=lambda turn: {"greeting": turn.message.text}
        ),
        "calling": langgraph.agent(calling, name="Calling"),
        "heard": langgraph.agent(heard, name="Heard", config={"callbacks": [Heard()]}),
        "heard-by-manager": langgraph.agent(
            heard,
            name="Heard too",
            config=lambda turn: {"callbacks": AsyncCallbackManager([], [Heard()])},
        ),
        "mumbling": langgraph.agent(mumbling, name="Mumbling"),
        "amount": langgraph.agent(filled(Amount), name="Amount"),
        "painted": langgraph.agent(filled(Painted), name="Painted"),
        "twice": langgraph.agent(twice, name="Twice"),
        "silent": langgraph.agent(silent, name="Silent"),
        "keyed": langgraph.agent(shared, name="Keyed", security=ApiKey(keys=keys)),
        "open": langgraph.agent(shared, name="Open"),
        "saved": langgraph.agent(saved),
        "steps": langgraph.agent(steps, name="Steps"),
        "workflow": langgraph.agent(workflow, name="Workflow"),
        "pipeline": langgraph.agent(pipeline, name="Pipeline"),
        "page": serving.documented("langgraph", "booking.py")["served"],
        "currency": example("currency_langgraph").agent,
        "plain": plain,
        **{path.removeprefix("/"): each for path, each in assistants.items()},
    }


if __name__ == "__main__":
    serve(served())
