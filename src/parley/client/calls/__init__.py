"""Calls of one agent: operations, turns, and resumable streams."""
