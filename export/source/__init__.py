"""What a user names as a checkpoint: found, recognized, or refused with what it is and what to do."""

from __future__ import annotations


# Checkpoints: config, weights, the text model in a multimodal one.


# The tokenizer beside a checkpoint: read or converted, with its named tokens and the ends of a text.
