"""Agents, workflows and engines of LlamaIndex, served as A2A agents; A2A agents as their tools.

from parley.integrations import llama_index

parley.serve(llama_index.agent(assistant))

assistant = FunctionAgent(tools=await llama_index.tools("https://weather.example"), llm=llm)
"""

from __future__ import annotations

from parley.integrations.serving import missing

try:
    import llama_index.core as _  # noqa: F401
except ImportError as error:
    raise missing("llama-index", error) from error

from parley.integrations.llama_index.remote_tools import sub_agent, tools
from parley.integrations.llama_index.served import agent

__all__ = ["agent", "sub_agent", "tools"]
