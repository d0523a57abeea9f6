"""References to compare with: eager sessions, and the uncached oracle."""
