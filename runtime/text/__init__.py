"""Conversations: turns, templates' text, and streams of decoded tokens."""
