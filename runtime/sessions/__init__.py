"""Sessions: tokens in, logits out, and a state that can be rolled back, saved and loaded."""
