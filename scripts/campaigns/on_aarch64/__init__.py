"""What scripts/trust on-aarch64 is made of."""
