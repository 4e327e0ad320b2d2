"""BeeAI: its agents and workflows served, A2A agents as its tools.

parley.serve(beeai.agent(my_agent))

my_agent = RequirementAgent(llm=..., tools=await beeai.tools("https://..."))
"""

from parley.integrations.serving import missing

try:
    from parley.integrations.beeai.serving import BeeRemoteTool, agent, tools
except ImportError as error:
    if (error.name or "").partition(".")[0] != "beeai_framework":
        raise
    raise missing("beeai", error) from error

__all__ = ["BeeRemoteTool", "agent", "tools"]
