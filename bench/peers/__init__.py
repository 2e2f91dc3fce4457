"""Kellet's simulation beside those of flwr and pfl: rounds a second, and memory."""
