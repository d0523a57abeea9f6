"""Output folders: written whole or not at all, with their manifest."""
