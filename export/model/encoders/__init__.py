"""The encoders of pictures that hybridge exports: one file a family, and what they share in ``encoder``."""
