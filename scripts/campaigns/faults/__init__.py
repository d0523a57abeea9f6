"""Cut the power of writers: ``scripts/trust faults``."""
