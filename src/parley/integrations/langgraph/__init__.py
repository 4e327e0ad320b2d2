"""LangGraph: graphs served as A2A agents, and A2A agents as tools and nodes of graphs.

    from parley.integrations import langgraph

    agent = langgraph.agent(graph)  # serve it: parley.serve(agent)
    tools = await langgraph.tools("https://agent.example.com")  # call others

It needs the extra ``langgraph``.
"""

from parley.integrations.serving import needs

with needs("langgraph"):
    from parley.integrations.langgraph.calling import node, tools
    from parley.integrations.langgraph.serving import agent, assistants

__all__ = ["agent", "assistants", "node", "tools"]
