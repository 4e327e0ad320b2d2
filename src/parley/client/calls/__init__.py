"""Calls of one agent: operations, turns, and streams that are resumed."""
