"""Frameworks and MCP: what exists there served as A2A agents, and A2A agents called from there.

One module each, imported only when used: ``parley.integrations.langgraph`` and so on.
"""
