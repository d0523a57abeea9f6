"""Campaigns: long attacks on hybridge, and measurements of it, each a module here that ``scripts/trust NAME`` runs."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""
