"""Pydantic AI: its agents served, other agents as its toolsets."""

from parley.integrations.pydantic_ai import installed as installed  # says how to install it
from parley.integrations.pydantic_ai.remote_toolset import RemoteToolset, toolset
from parley.integrations.pydantic_ai.serving import agent

__all__ = ["RemoteToolset", "agent", "toolset"]
