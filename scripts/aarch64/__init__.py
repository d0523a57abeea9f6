"""What scripts/on-aarch64 is made of."""
