"""Assembly of a server: agents, store, bus, push and bindings become an ASGI app or a process."""
