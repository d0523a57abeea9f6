"""Real programs of every family, compared with the uncached eager model."""
