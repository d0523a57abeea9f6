"""GGUF, llama.cpp's format: one file with sizes, weights under names of its own, and the tokenizer."""
