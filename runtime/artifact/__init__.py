"""Artifact folders: their manifest, hashes, and checks of the program inside."""
