"""Calls of an agent by a command, and the output of their results."""
