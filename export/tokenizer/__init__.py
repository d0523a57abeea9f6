"""The tokenizer beside a checkpoint: read or converted, with its named tokens and the ends of a text."""
