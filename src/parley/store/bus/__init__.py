"""Hints (wake-up notifications) between the replicas of a store. Nothing is kept there."""
