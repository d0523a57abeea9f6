"""optimum-executorch's ExecuTorchModelForCausalLM over an artifact's folder. Numbers are tokens.

optimum_executorch.py FOLDER
"""

from __future__ import annotations

import sys

from protocol import claim_stdout, serve


def main(folder: str) -> None:
    """Serve one model; it has no turns: every prompt begins at position 0."""
    answers = claim_stdout()
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers the operators of --kernels llm
    from optimum.executorch import ExecuTorchModelForCausalLM

    model = ExecuTorchModelForCausalLM.from_pretrained(folder)

    def generate(prompt: list[int], count: int) -> list[int]:
        return model.generate(prompt, max_seq_len=len(prompt) + count)

    serve(generate, lambda: None, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
