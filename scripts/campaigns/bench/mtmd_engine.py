"""Encodes pictures by llama.cpp's mtmd, through the C interface that llama-cpp-python wraps; runs in the peers' environment.

Usage: python -m campaigns.bench.mtmd_engine MMPROJ.gguf TEXT.gguf SIDE ROUNDS [EMBEDDINGS.npy]
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp as llama
import numpy as np
from llama_cpp import mtmd_cpp as mtmd

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Encoder:
    """An encoder of pictures on one thread."""

    def __init__(self, projector: Path, text: Path) -> None:
        """Open the encoder. Raises RuntimeError if llama.cpp does not take the files."""
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(str(text).encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {text.name}")
        parameters = mtmd.mtmd_context_params_default()
        parameters.use_gpu, parameters.n_threads, parameters.print_timings = False, 1, False
        parameters.warmup = False
        self.context = mtmd.mtmd_init_from_file(str(projector).encode(), self.model, parameters)
        if not self.context:
            raise RuntimeError(f"mtmd does not load {projector.name}")
        self.width = llama.llama_model_n_embd(self.model)

    def encode(self, pixels: Pixels) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return float32 [tokens, width] of a picture uint8 [height, width, 3], resized by mtmd if it wants another size."""
        flat = np.ascontiguousarray(pixels)
        data = flat.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], data)
        chunks = mtmd.mtmd_input_chunks_init()
        marker = mtmd.mtmd_default_marker()
        prompt = mtmd.mtmd_input_text(text=marker, text_len=len(marker), add_special=False, parse_special=True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        try:
            if mtmd.mtmd_tokenize(self.context, chunks, ctypes.byref(prompt), bitmaps, 1):
                raise RuntimeError("mtmd does not take the picture")
            parts = [mtmd.mtmd_input_chunks_get(chunks, each) for each in range(mtmd.mtmd_input_chunks_size(chunks))]
            (picture,) = [each for each in parts if mtmd.mtmd_input_chunk_get_type(each) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE]
            if mtmd.mtmd_encode_chunk(self.context, picture):
                raise RuntimeError("mtmd does not encode the picture")
            rows = mtmd.mtmd_input_chunk_get_n_tokens(picture)
            return np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self.context), (rows, self.width)).copy()
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)


def main(projector: str, text: str, side: str, rounds: str, kept: str = "") -> None:
    """Print the median seconds of an encoding and the peak memory as JSON; the first round is not counted."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    encoder, seconds = Encoder(Path(projector), Path(text)), list[float]()
    for number in range(1 + int(rounds)):
        pixels = np.random.default_rng(number).integers(0, 256, (int(side), int(side), 3), dtype=np.uint8)
        began = time.perf_counter()
        embeddings = encoder.encode(pixels)
        seconds.append(time.perf_counter() - began)
    if kept:
        np.save(kept, embeddings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"encode": median(seconds[1:]), "memory": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
