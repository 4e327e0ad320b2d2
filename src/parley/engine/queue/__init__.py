"""The queue of unclaimed tasks: their order, and claiming them. It knows no turns."""
