"""Spans, metrics and log fields: how a running agent is seen by its operator."""
