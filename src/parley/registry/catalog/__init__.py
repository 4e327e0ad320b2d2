"""Catalogs of agents (AI Catalog 1.0, ARD 0.9): entries, identifiers, searches, and their texts."""
