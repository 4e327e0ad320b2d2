"""Turns of agents that may hand conversations over."""
