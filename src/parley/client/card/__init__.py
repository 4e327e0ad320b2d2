"""From a reference to an agent card, and to the interface to call."""
