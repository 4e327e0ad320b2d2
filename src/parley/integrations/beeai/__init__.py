"""BeeAI: its agents and workflows served, A2A agents as its tools.

parley.serve(beeai.agent(my_agent))

my_agent = RequirementAgent(llm=..., tools=await beeai.tools("https://..."))
"""

from parley.integrations.serving import needs

with needs("beeai"):
    from parley.integrations.beeai.serving import BeeRemoteTool, agent, tools

__all__ = ["BeeRemoteTool", "agent", "tools"]
