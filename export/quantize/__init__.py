"""Quantization: which weights get how many bits, for our kernels and for the stock runtime."""
