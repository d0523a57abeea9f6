"""The parts of ``scripts/soak``."""
