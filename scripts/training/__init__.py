"""Train the embedded models, the target and its two drafters. Run by scripts/train-tiny."""
