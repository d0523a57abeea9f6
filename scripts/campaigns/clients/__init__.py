"""``scripts/trust clients``: every client of an artifact, held to the greedy tokens of the uncached model."""
