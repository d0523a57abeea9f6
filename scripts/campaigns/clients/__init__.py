"""``scripts/trust clients``: every client of an artifact, compared with the greedy tokens of the uncached model."""
