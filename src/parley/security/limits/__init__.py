"""How much callers may take: limits, the counters of rates, and usage."""
