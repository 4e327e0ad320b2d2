"""Limits on callers: declarations, the counters of rates, and usage."""
