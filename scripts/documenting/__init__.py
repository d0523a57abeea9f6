"""The parts of the documentation's site that are made from the sources."""
