"""Tools for an agent's function: how they are called, what they take, what they return."""
