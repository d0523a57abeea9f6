"""transformers' interface over an artifact: generate, with its options."""
