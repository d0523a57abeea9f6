"""Hostile input for everything that hybridge is handed: a target for each kind of it, one driver for all."""
