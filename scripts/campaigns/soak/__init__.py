"""The parts of ``scripts/trust soak``."""
