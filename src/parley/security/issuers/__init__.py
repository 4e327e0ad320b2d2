"""Issuers of tokens: their metadata and keys, fetched within limits."""
