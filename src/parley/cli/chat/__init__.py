"""A conversation in the terminal (``parley chat``)."""
