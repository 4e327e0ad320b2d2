"""What a command prints: text, errors, redaction."""
