"""Wake-up notifications (hints) between the replicas of a store. They are never stored."""
