"""The implementation of ``parley store``."""
