"""Callers that wait for the reply of a turn, of this process or another replica."""
