"""The SQL of the next version of the notes application."""
