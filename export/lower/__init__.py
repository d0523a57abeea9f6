"""Lowering: exported graphs to one ExecuTorch program."""
