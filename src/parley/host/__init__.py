"""Agents, store, bus, push and bindings, put together as an ASGI app or a server."""
