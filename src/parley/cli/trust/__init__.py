"""Signing keys and signed cards, as ``parley keys`` and ``parley card`` handle them."""
