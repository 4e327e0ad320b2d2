"""Agents of the OpenAI Agents SDK, served as A2A agents; A2A agents as its tools and sub-agents.

from parley.integrations import openai_agents

parley.serve(openai_agents.agent(assistant))

assistant = Agent(..., tools=await openai_agents.tools("https://weather.example"))
"""

from __future__ import annotations

from parley.integrations.serving import missing

try:
    import agents  # noqa: F401
except ImportError as error:
    raise missing("openai-agents", error) from error

from parley.integrations.openai_agents.served import agent, sub_agent, tools

__all__ = ["agent", "sub_agent", "tools"]
