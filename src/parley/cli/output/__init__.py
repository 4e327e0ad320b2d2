"""The output of a command: text, JSON, errors, redaction."""
