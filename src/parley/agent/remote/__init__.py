"""Calls of other agents, bound to the turn that makes them and kept in its task's log."""
