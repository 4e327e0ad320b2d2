"""``parley store``: what its commands do."""
