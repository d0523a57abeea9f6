"""From a transformers checkpoint to one ExecuTorch program with speculative rollback."""
