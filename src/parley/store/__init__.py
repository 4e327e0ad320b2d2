"""Task logs: events, their fold, the stores that keep them, and their followers."""
