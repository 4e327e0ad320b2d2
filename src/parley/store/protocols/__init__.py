"""The values that a task store takes and returns, and its errors."""
