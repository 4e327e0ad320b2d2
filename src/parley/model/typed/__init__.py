"""Types whose values are JSON: their schemas, reading and checking values."""
