"""Calling an agent from a command, and reporting the result."""
