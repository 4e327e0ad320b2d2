"""Security schemes: the credentials of callers, and their verification."""
