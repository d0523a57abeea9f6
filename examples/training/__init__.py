"""Train the embedded models, the target and its drafters. Run by ``python -m training``, see README.md."""
