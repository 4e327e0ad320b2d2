"""The SQL of an application that keeps notes."""
