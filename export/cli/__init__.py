"""The commands that make and check artifacts."""
