"""Compositions, and conversations that agents hand to each other."""
