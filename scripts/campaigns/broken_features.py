"""Break a feature at a time and look whether the default size of ``scripts/test`` notices it. Exit code 1 where it does not.

A test may move to ``scripts/test --all`` as long as every line here is noticed by what stays. Each feature names the test files
that are run, without ``--all``: a part of the default that fails is a default that fails. The test that notices a break runs
again without it, and has to pass.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from campaigns import ROOT, campaign

SECONDS = 600
"""The tests of one feature at most; one that does not end is noticed."""
PASSED, FAILED, NO_TESTS = 0, 1, 5
"""pytest's exit codes; it runs no test of a file if --all alone would run them."""


@dataclass(frozen=True)
class Break:
    """One change to the product. tests: names of test files, without ``test_`` and ``.py``."""

    feature: str
    file: str
    before: str
    after: str
    tests: str


FEATURES = (
    Break("the gated delta rule's decay", "cache/recurrences/gated_delta_rule.py", "total = log_decay.cumsum(-1)",
          "total = log_decay.cumsum(-1) * 0.99", "gated_delta_rule families exported_families"),
    Break("a short convolution's state after a commit", "cache/layers/short_conv.py",
          "self.conv.commit(self.conv_state, self.staged_conv, count)",
          "self.conv.commit(self.conv_state, self.staged_conv, (count - 1).clamp(min=0))",
          "short_conv families exported_families"),
    Break("Mamba's groups of heads", "cache/recurrences/linear_attention.py",
          "grouped.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2) if each > 1",
          "grouped.unsqueeze(1).expand(-1, each, -1, -1, -1).flatten(1, 2) if each > 1",
          "linear_attention selective_scan families exported_families"),
    Break("sliding windows past the window", "cache/operations/ring.py", "(at - self.window + 1).clamp(min=0)",
          "(at - self.window).clamp(min=0)", "sliding_attention families exported_families"),
    Break("verify leaves the committed length alone", "cache/hybrid_cache.py", "self.staged.fill_(block.length)\n",
          "self.staged.fill_(block.length)\n            self.length.add_(block.count)\n", "state_machine families pte_session"),
    Break("slots are forgotten when rows below them are overwritten", "cache/hybrid_cache.py",
          "torch.where(which, -1, self.slot_length)", "torch.where(which, self.slot_length, self.slot_length)",
          "state_machine families pte_session"),
    Break("4-bit weights of the checkpoint's own kernels", "export/quantize/quantize.py",
          "return rounder(name, weight, grid_of(bits, options))",
          "return rounder(name, weight.roll(1, 0), grid_of(bits, options))",
          "block_linear rounding exported_families"),
    Break("GGUF weights that llama.cpp permuted", "export/source/gguf/architecture.py",
          "tensor.unflatten(0, (config[heads], -1, 2))", "tensor.unflatten(0, (config[heads], 2, -1))", "gguf"),
    Break("LoRA adapters", "export/source/text_model.py", "merge_and_unload(safe_merge=True)", "unload()",
          "adapters"),
    Break("prompt lookup's proposals", "runtime/native/engine/prompt_lookup.cpp", "subspan(found), limit",
          "subspan(found - 1), limit", "prompt_lookup generate"),
    Break("multi-token prediction", "export/drafters/mtp.py",
          "out.index_select(1, (block.count + i - 1).clamp(min=0))",
          "out.index_select(1, (block.count + i).clamp(min=0))", "mtp drafter_programs demo"),
    Break("block drafters (DFlash, DSpark)", "export/drafters/block.py", "hidden = hidden[:, block.length - draft_len :]",
          "hidden = hidden[:, : draft_len]", "block_drafters drafter_programs"),
    Break("draft vocabularies", "export/weights.py", "ids[::LANES] // LANES, len(ids)", "ids[::LANES] // LANES // 2, len(ids)",
          "draft_vocabulary block_linear"),
    Break("sampling: draws keep the distribution", "runtime/native/engine/distribution.cpp",
          "least = variate / weight", "least = variate", "sampling generate"),
    Break("structured output: tokens outside the grammar", "runtime/native/text/grammar/grammar.cpp",
          "(allowed[i / 64] >> i % 64 & 1) == 0) logits[i] = NEVER;", "false) logits[i] = NEVER;",
          "structured server_grammars tools serve_requests"),
    Break("the prefix cache's budget", "runtime/native/engine/prefix_cache.cpp", "while (bytes_ > budget_)",
          "while (bytes_ > 2 * budget_)", "checkpoints checkpoint_folder"),
    Break("saved states are checked", "runtime/native/engine/state_file.cpp",
          "left_ == 0 && checksum == wanted", "left_ == 0", "state_file native_core"),
    Break("evaluate's divergence", "export/check/evaluate.py", "(want.exp() * (want - got)).sum(-1)",
          "(got.exp() * (want - got)).sum(-1)", "comparison evaluate"),
    Break("validation notices another model", "export/check/validate.py",
          "if not error <= report.tolerance * report.largest_logit", "if not error <= 1e9 * report.largest_logit",
          "nonfinite_logits pte_session"),
    Break("a session's restore", "runtime/native/engine/session.cpp", "move_state(\"restore\", slot,",
          "move_state(\"snapshot\", slot,", "session checkpoints drafter_programs"),
    Break("a session's prefill in chunks", "runtime/native/engine/session.cpp", "i + 1 < pieces.size()",
          "i + 2 < pieces.size()", "session checkpoints drafter_programs"),
    Break("rope positions after a picture", "cache/layers/rope_delta.py", "advance - block.count, 0)",
          "advance - block.count + 1, 0)", "rope_delta picture_forms validate_pictures"),
    Break("rows of a picture see each other", "cache/operations/ring.py", "block.start + block.count - 1, ring)",
          "block.start + block.count - 2, ring)", "picture_forms validate_pictures"),
    Break("the C API's commit", "runtime/native/c_api/sessions.cpp", "answer(open.session->commit(count))",
          "answer(open.session->commit(count + 1))", "native_package"),
    Break("products of 4-bit weights", "runtime/kernels/panels.h", "minima.numbers ? 0 : 1 << (code - 1)",
          "minima.numbers ? 0 : (1 << (code - 1)) - 1", "block_linear"),
    Break("windows in ONNX graphs", "export/write/onnx_kernels.py", "\"local_window_size\": ring.window if ring else -1",
          "\"local_window_size\": ring.window + 1 if ring else -1", "onnx_export onnx_session"),
    Break("tokenizers that are converted encode the same", "export/source/tokenizer.py", "if is_same(one.tokenizer):",
          "if True:", "tokenizer_files"),
    Break("an answer ends before a stop string", "runtime/native/text/stop_strings.h", "is_complete_ ? begin :",
          "is_complete_ ? first_end :", "text_stream serve chat"),
    Break("the server reads a conversation on from its own answers", "runtime/server/prompts.py",
          "tokens = [*answered, *with_pictures(encoded.ids, new)]", "tokens = with_pictures(encoded.ids, new)",
          "serve conversation"),
    Break("other threads help with a kernel", "runtime/kernels/dispatch/help.h", "return pace[1] <= pace[0];",
          "return pace[1] > pace[0];", "thread_pool"),
    Break("hybridge run shows every token", "runtime/cli/run.py", "                    _write(piece.content)",
          "                    pass", "cli_run"),
    Break("8-bit checkpoints keep 8 bits", "export/quantize/quantize.py", "own_bits >= 8", "own_bits > 8", "default_recipes"),
)  # fmt: skip


def main() -> int:
    """Break each feature; print what noticed it."""
    parser = campaign.parser("broken-features", __doc__)
    parser.add_argument("words", nargs="*", help="only features with one of these words in their names")
    words = parser.parse_args().words
    chosen = [each for each in FEATURES if not words or any(word in each.feature for word in words)]
    if not chosen:
        parser.error(f"no feature has one of these words in its name: {' '.join(words)}")
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="hybridge-broken-") as scratch:
        copy = Path(scratch) / "checkout"
        campaign.copy_checkout(copy)
        for each in chosen:
            start = time.monotonic()
            verdict, is_noticed = tried(copy, each)
            noticed += is_noticed
            print(f"{verdict}: {each.feature} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{noticed} of {len(chosen)} broken features are noticed")
    return 0 if noticed == len(chosen) else 1


def tried(copy: Path, each: Break) -> tuple[str, bool]:
    """Break a feature in the copy of the checkout; return what to say, and whether a test noticed that and nothing else."""
    (copy / each.file).write_text(broken(each), encoding="utf-8")
    noticed = next((name for name in each.tests.split() if run(copy, name) not in (PASSED, NO_TESTS)), None)
    shutil.copy(ROOT / each.file, copy / each.file)
    if noticed is None:
        return "NOT NOTICED", False
    if run(copy, noticed, "--last-failed") != PASSED:
        return f"test_{noticed} FAILS WITHOUT IT", False
    return f"noticed by test_{noticed}", True


def find_tests(checkout: Path, name: str) -> Path:
    """Return the test file of this name, whichever folder of tests/ has it. Raises ValueError unless exactly one does."""
    (path,) = (checkout / "tests").rglob(f"test_{name}.py")
    return path


def run(copy: Path, name: str, *options: str) -> int:
    """Run a test file in the copy up to its first failure, and return pytest's exit code; FAILED if it does not end.

    Raises:
        RuntimeError: pytest could not run the tests, which says nothing of the feature.
    """
    environment = os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(copy.parent / "cache"),
        "HYBRIDGE_TEST_STORE": str(copy.parent / "store"),  # features that change no export share what was exported
    }
    words = ["-x", "-q", "--numprocesses=0", f"--override-ini=cache_dir={copy.parent / 'last'}", *options]
    command = [sys.executable, "-m", "pytest", *words, f"--basetemp={copy.parent / 'tests'}", str(find_tests(copy, name))]
    with (
        (copy.parent / "output").open("w+b") as output,
        subprocess.Popen(command, cwd=copy, env=environment, stdout=output, stderr=output, start_new_session=True) as child,
    ):
        try:
            code = child.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return FAILED
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        if code in (PASSED, FAILED, NO_TESTS) or code < 0:  # a test that ends its process fails, too
            return code
        output.seek(0)
        raise RuntimeError(f"pytest ended with {code} in test_{name}.py:\n{output.read().decode(errors='replace')[-3000:]}")


def broken(each: Break) -> str:
    """Return the source of the changed file."""
    source = (ROOT / each.file).read_text(encoding="utf-8")
    assert each.before in source, f"{each.feature}: {each.file} has changed; find the line again"
    return source.replace(each.before, each.after)


if __name__ == "__main__":
    sys.exit(main())
