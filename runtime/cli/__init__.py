"""The commands that need an artifact and no PyTorch, and what all commands share."""
