"""Codecs: bytes in, model out. No I/O."""
