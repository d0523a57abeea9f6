"""Cache layers: the state of one decoder layer, and how a block of tokens reads and changes it."""
