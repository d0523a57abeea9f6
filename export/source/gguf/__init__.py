"""Read GGUF, llama.cpp's format: one file with metadata, weights under names of its own, and the tokenizer.

``file.py`` reads the file, ``architecture.py`` and the tables undo llama.cpp's changes, ``checkpoint.py`` puts both
together.
"""
