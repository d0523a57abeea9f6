"""What scripts/trust faults is made of: writers that are killed, short of room or without power, and what must be left."""
