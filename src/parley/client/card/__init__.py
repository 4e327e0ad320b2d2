"""Resolves a reference to an agent card, and chooses the interface to call."""
