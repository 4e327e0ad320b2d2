"""Fixtures and servers that tests share. A test creates its own only where none of them fits.

To test                                    use
what an agent does                         ``parley.testing.client(agent)``: in process, no port
an agent over a binding and a version      ``servers.served(agent, way=...)``, for ``way in WAYS``
an app at an address                       ``parley.server.run.serving``, ``servers.under_uvicorn``
a server, byte by byte                     ``http`` (requests and frames), ``websocket``, ``grpc``
a binding without an agent behind it       ``scripted``: each operation is a function of the test
a client                                   ``scripted_server``: a server that cuts, stalls and lies
webhooks, certificates, a real browser     ``webhooks``, ``certificates``, ``browser``
a store, or objects from its records       ``records``: tasks, events and appends in one line each
codecs, with every message type            ``strategies.value_of(Task)``, for hypothesis
a command, a port, a server that is killed ``processes`` (``Running``, ``free_port``), ``forking``
a fleet on real services, and its faults   ``services``: PostgreSQL, Redis, S3, a door, a proxy

The kit asserts no promise of Parley: that is for tests. Wait with ``waiting.until``, never with a
sleep. Agents and apps for one room alone stand in a module of that room, next to its tests; once a
second room needs them, they move here. Importing a module of the kit starts nothing: a server lives
as long as the ``with`` block, or the fixture, in which it was started.
"""
