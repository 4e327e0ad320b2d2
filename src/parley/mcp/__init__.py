"""MCP, both ways: tools of MCP servers for turns, and agents for MCP hosts.

``docs/guides/mcp.md`` shows both.

``McpServer`` (``tool_server``) is a source of tools. ``McpBridge`` (``bridge``) serves agents to
hosts, and ``parley mcp serve`` runs it.
"""
