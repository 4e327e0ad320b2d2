"""MCP, both ways (``docs/mcp.md``): tools of MCP servers for turns, and agents for MCP hosts.

``McpServer`` (``tool_server``) is a source of tools. ``McpBridge`` (``bridge``) serves agents to
hosts, and ``parley mcp serve`` runs it.
"""
