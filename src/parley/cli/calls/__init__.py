"""Calls of an agent from a command, and the report of the result."""
