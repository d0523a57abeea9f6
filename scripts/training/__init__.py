"""Train the embedded models, the target and its drafters. Run by scripts/train-tiny."""
