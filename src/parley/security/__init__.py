"""Who may do what, and where this process may connect to."""
