"""The HTTP bindings, listening: JSON-RPC and HTTP+JSON."""
