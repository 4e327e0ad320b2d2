"""The SQL of the notes application."""
