"""The protocols of a task store: what each part of it guarantees, its values, and the errors."""
