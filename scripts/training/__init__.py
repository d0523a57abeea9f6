"""How the embedded models were made: the target and its two drafters. Run by scripts/train-tiny."""
