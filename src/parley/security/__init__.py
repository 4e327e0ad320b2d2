"""Safe egress: the addresses this process may connect to, and limits on responses."""
