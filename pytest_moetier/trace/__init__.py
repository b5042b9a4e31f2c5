"""What the router chose: typed records, the readers that make them, and a seeded generator (paper sections 2-3)."""
