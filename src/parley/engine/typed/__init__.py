"""Types of an author's inputs, results and answers: their JSON Schema, and reading values."""
