"""The choices made where the specification can be read in more than one way.

``docs/reference/specification-choices.md`` lists them. Each has a test here that carries its
number, but for what any caller can ask of any server: that is a requirement of
``parley conformance server``. Beside them are other rules that are about what exactly is on the
wire. Requests are made of bytes (see ``wire.py``): no client of ours makes anything right on the
way.
"""
