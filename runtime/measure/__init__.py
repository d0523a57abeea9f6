"""Measure what speculation brings and what a device does with an artifact."""
