"""Write artifacts from programs that are kept apart from weights, without PyTorch."""
