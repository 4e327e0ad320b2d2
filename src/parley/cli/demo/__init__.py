"""``parley demo``: its scenes, and the stage that shows them."""
