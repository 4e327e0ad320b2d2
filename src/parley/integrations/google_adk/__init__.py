"""Google's Agent Development Kit: its agents served, other agents as its tools and sub-agents."""

from parley.integrations.serving import needs

with needs("google-adk"):
    from parley.integrations.google_adk.remote_agent import (
        AdkRemoteAgent,
        AdkSkillTool,
        sub_agent,
        tools,
    )
    from parley.integrations.google_adk.serving import agent
    from parley.integrations.google_adk.sessions import ContextSessions

__all__ = ["AdkRemoteAgent", "AdkSkillTool", "ContextSessions", "agent", "sub_agent", "tools"]
