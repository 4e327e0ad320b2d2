"""Types of an author's inputs, results and answers: JSON Schemas, and reading values."""
