"""The SQL of the next version of the application that keeps notes."""
