"""Safe egress, limits on responses, and signed tokens."""
