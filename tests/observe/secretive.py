"""An agent with contents and secrets that no span may have."""

from parley import Agent, Caller, Turn
from parley.llm import ModelLoop
from parley.llm.model import ModelRequest, ScriptedModel, ScriptedReply
from parley.security import Bearer

agent = Agent(
    "Secretive", security=Bearer(lambda token: Caller("ann") if token == "planted-secret" else None)
)


def script(request: ModelRequest) -> ScriptedReply | str:
    if request.tool_results:
        return "planted-content of the model"
    return ScriptedReply(tool_calls=[("look", {"at": "planted-content of a tool"})])


def look(at: str) -> str:
    """Looks."""
    return at


loop = ModelLoop(model=ScriptedModel(script), tools=[look])


@agent.skill(replies="task")
async def work(turn: Turn) -> str:
    await turn.step("one", str, "planted-content of a step")
    await loop.run(turn)
    await turn.ask("planted-content of a question")
    raise RuntimeError("planted-content of an error")
