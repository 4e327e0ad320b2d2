"""The bindings, listening."""
