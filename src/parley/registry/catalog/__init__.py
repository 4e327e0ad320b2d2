"""Catalogs of agents (AI Catalog 1.0, ARD 0.91): entries, identifiers, searches, and their JSON."""
