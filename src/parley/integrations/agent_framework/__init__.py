"""Microsoft Agent Framework: its agents and workflows served, A2A agents as its tools and agents.

parley.serve(agent_framework.agent(my_agent))

my_agent = Agent(client, tools=await agent_framework.tools("https://..."))
"""

from parley.integrations.serving import missing

try:
    from parley.integrations.agent_framework.serving import CalledAgent, agent, sub_agent, tools
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("agent_framework", "agent_framework_openai"):
        raise
    raise missing("agent-framework", error) from error

__all__ = ["CalledAgent", "agent", "sub_agent", "tools"]
