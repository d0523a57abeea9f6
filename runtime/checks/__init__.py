"""Checks of an artifact against an oracle: random programs, sampling, drift, what speculation brings."""
