"""How much callers may take: the language of limits, windows, and the error of what is exceeded."""
