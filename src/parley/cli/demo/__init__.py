"""``parley demo``: its steps, and the views that show them."""
