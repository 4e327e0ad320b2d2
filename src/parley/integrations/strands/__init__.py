"""Agents of Strands, served as A2A agents; A2A agents as their tools and as nodes of graphs.

from parley.integrations import strands

parley.serve(strands.agent(assistant))

assistant = Agent(tools=await strands.tools("https://weather.example"))
"""

from parley.integrations.serving import needs

with needs("strands"):
    from parley.integrations.strands.served import agent, sub_agent, tools

__all__ = ["agent", "sub_agent", "tools"]
