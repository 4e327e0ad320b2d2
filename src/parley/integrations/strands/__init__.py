"""Agents of Strands, served as A2A agents; A2A agents as their tools and as nodes of graphs.

from parley.integrations import strands

parley.serve(strands.agent(assistant))

assistant = Agent(tools=await strands.tools("https://weather.example"))
"""

from __future__ import annotations

from parley.integrations.serving import missing

try:
    import strands as _  # noqa: F401
except ImportError as error:
    raise missing("strands", error) from error

from parley.integrations.strands.remote_tools import sub_agent, tools
from parley.integrations.strands.served import agent

__all__ = ["agent", "sub_agent", "tools"]
