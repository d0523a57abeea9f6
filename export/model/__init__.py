"""Adaptation: transformers' models over our cache, one entry a family."""
