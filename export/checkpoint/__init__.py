"""Checkpoints: config, weights, the text model in a multimodal one."""
