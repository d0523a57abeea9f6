"""ExecuTorch artifacts: the exported methods and the export itself."""
