"""llama.cpp's logits of some texts by a GGUF file; runs in the peers' environment: GGUF TOKENS.npy LOGITS.npy."""

from __future__ import annotations

import sys

import llama_cpp
import numpy as np


def main(gguf: str, tokens: str, logits: str) -> None:
    """Write the logits [B, T, V] of the tokens [B, T], each text from an empty state."""
    texts = np.load(tokens)
    length = texts.shape[1]
    model = llama_cpp.Llama(gguf, n_ctx=length + 8, logits_all=True, verbose=False, n_threads=1, n_batch=length)
    found = []
    for text in texts:
        model.reset()
        model.eval(text.tolist())
        found.append(np.array(model.scores[:length], dtype=np.float32))
    np.save(logits, np.stack(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
