"""Calls of other agents, bound to the calling turn and recorded in its task's log."""
