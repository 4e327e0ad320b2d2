"""Credentials under way: hashes of passwords, verdicts that are kept, addresses, what logs hide."""
