"""MCP: A2A agents as a server of tools, for hosts that speak MCP (``docs/mcp.md``).

``McpBridge`` of ``bridge`` is that server, and ``parley mcp serve`` runs it.
"""
