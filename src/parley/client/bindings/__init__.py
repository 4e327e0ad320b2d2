"""The bindings, calling: bytes out, answers in."""
