"""Published, trained models beside llama.cpp: for scripts/real-models."""
