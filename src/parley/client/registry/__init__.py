"""The client of registries: agents are found by need, over REST or in a local catalog."""
