"""Structured output: what a JSON schema or a regular expression lets a text go on with, by llguidance."""
