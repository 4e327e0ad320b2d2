"""Turns that call other agents."""
