"""Pydantic AI: its agents served, other agents as its toolsets."""

from parley.integrations.serving import needs

with needs("pydantic-ai"):
    from parley.integrations.pydantic_ai.serving import RemoteToolset, agent, toolset

__all__ = ["RemoteToolset", "agent", "toolset"]
