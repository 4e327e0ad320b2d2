"""Who waits for the reply of a turn, here and on other replicas."""
