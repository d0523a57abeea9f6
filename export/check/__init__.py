"""Checks of an artifact against an oracle: random programs, validation, comparison by texts, and of what speculation does."""

from __future__ import annotations


# References to compare with: eager sessions, and the uncached oracle.
