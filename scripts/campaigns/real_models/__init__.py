"""Published, trained models beside llama.cpp: for scripts/trust real-models."""
