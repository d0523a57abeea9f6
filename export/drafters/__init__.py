"""Drafters that go into an artifact: what a checkpoint of one holds, and how it runs over the target's state."""
