"""Linear layers, embeddings and experts over quantized or packed weights."""
