"""Drafters: prompt lookup, draft models, and blocks of draft tokens from the artifact's own drafter."""
