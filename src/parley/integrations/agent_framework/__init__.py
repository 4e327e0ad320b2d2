"""Microsoft Agent Framework: its agents and workflows served, A2A agents as its tools and agents.

parley.serve(agent_framework.agent(my_agent))

my_agent = Agent(client, tools=await agent_framework.tools("https://..."))
"""

from parley.integrations.serving import needs

with needs("agent-framework"):
    from parley.integrations.agent_framework.serving import CalledAgent, agent, sub_agent, tools

__all__ = ["CalledAgent", "agent", "sub_agent", "tools"]
