"""The catalog that every server can publish of its own agents."""
