"""Models behind OpenAI-compatible endpoints: requests, replies in pieces, what goes wrong."""
