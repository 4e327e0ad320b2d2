"""Which task is run next, and when a wait is over."""
