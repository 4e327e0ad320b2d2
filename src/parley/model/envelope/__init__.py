"""Messages of the envelope protocol, and what an agent declares about itself in it."""
