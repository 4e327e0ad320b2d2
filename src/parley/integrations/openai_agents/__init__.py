"""Agents of the OpenAI Agents SDK, served as A2A agents; A2A agents as its tools and sub-agents.

from parley.integrations import openai_agents

parley.serve(openai_agents.agent(assistant))

assistant = Agent(..., tools=await openai_agents.tools("https://weather.example"))
"""

from parley.integrations.serving import needs

with needs("openai-agents"):
    from parley.integrations.openai_agents.served import agent, sub_agent, tools

__all__ = ["agent", "sub_agent", "tools"]
