"""Conformance runs: what the specification asks of a server or a client, tried and judged."""
