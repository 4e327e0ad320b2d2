"""Security schemes: what an agent asks callers for, and how it verifies that."""
