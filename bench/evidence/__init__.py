"""What the tables in docs/evidence share: their data, and cells that are worked once."""
