"""MCP in both directions (``docs/guides/mcp.md``): MCP servers' tools for turns, and agents for MCP hosts.

``McpServer`` (``tool_server``) is a source of tools. ``McpBridge`` (``bridge``) serves agents to
hosts, and ``parley mcp serve`` runs it.
"""
