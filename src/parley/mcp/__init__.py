"""MCP in both directions: MCP servers' tools for turns, and agents for MCP hosts.

``docs/guides/mcp.md`` is the guide.
``McpServer`` (``tool_server``) is a source of tools. ``McpBridge`` (``bridge``) serves agents to
hosts, and ``parley mcp serve`` runs it.
"""
