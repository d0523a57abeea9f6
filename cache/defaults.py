"""What is taken where a caller says nothing; without torch, because the command line shows it in its help."""

DEFAULT_MAX_SEQ_LEN = 2048
"""Tokens that a cache holds."""
