"""Compositions, and handoffs of conversations between agents."""
