"""Cassettes: what was said with agents and models, recorded once and replayed without them."""
