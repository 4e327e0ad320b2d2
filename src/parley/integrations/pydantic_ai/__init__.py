"""Pydantic AI: its agents served, other agents as its toolsets."""

from parley.integrations.serving import missing

try:
    import pydantic_ai as _  # noqa: F401
except ImportError as error:
    raise missing("pydantic-ai", error) from error

from parley.integrations.pydantic_ai.serving import RemoteToolset, agent, toolset

__all__ = ["RemoteToolset", "agent", "toolset"]
