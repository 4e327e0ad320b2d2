"""Google's Agent Development Kit: its agents served, other agents as its tools and sub-agents."""

from parley.integrations.google_adk import installed as installed  # says how to install ADK
from parley.integrations.google_adk.remote_agent import AdkRemoteAgent, sub_agent
from parley.integrations.google_adk.remote_tools import AdkSkillTool, tools
from parley.integrations.google_adk.serving import agent
from parley.integrations.google_adk.sessions import ContextSessions

__all__ = ["AdkRemoteAgent", "AdkSkillTool", "ContextSessions", "agent", "sub_agent", "tools"]
