"""Checks of an artifact against an oracle: random programs, validation, comparison by texts, and of what speculation does."""
