"""docs/on-device.md: its C++ compiles, and runs an artifact through the Module that ExecuTorch's wheel has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT
from compiler_flags import MACROS, include_flags
from native_programs import app_links
from tokenizers import Tokenizer

from hybridge.runtime import Session
from hybridge.runtime.kernels import compiling

DOCUMENT = (CHECKOUT / "docs/on-device.md").read_text(encoding="utf-8")
MAIN = """
// MODEL PROMPT...: 20 tokens by decode; the same after going back, by blocks whose last guess is wrong, in other words.
int main(int argc, char** argv) {
  std::vector<int64_t> prompt;
  for (int i = 2; i < argc; ++i) prompt.push_back(std::atoll(argv[i]));
  Model model(argv[1]);
  std::vector<int64_t> plain = {model.prefill(prompt)};
  std::printf("kept %d\\n", static_cast<int>(model.snapshot(0)));
  while (plain.size() < 20) plain.push_back(model.decode(plain.back()));
  std::printf("back %d\\n", static_cast<int>(model.restore(0)));
  std::printf("nothing verified %d\\n", static_cast<int>(model.commit(1)));
  std::vector<int64_t> guessed = {plain[0]};
  int rejected = 0;
  while (guessed.size() < 18) {
    const size_t at = guessed.size();
    const std::vector<int64_t> block = {guessed.back(), plain[at], plain[at + 1] ^ 1};
    const auto [right, next] = advance(model, block);
    for (int64_t i = 1; i < right; ++i) guessed.push_back(block[i]);
    guessed.push_back(next);
    rejected += right < 3;
  }
  std::printf("rejected %d\\nplain", rejected);
  for (int64_t token : plain) std::printf(" %d", static_cast<int>(token));
  std::printf("\\nguessed");
  for (int64_t token : guessed) std::printf(" %d", static_cast<int>(token));
  std::printf("\\n");
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document's C++ example over ExecuTorch's own Module, with a main function, compiled."""
    example = re.search(r"```cpp\n(#include <algorithm>.*?)```", DOCUMENT, re.DOTALL)
    assert example
    folder = tmp_path_factory.mktemp("on_device")
    (folder / "example.cpp").write_text(example[1] + MAIN)
    compiler = compiling.compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = ["-std=c++20", "-O1", "-Wall", "-Wextra", *MACROS, *include_flags(), folder / "example.cpp"]
    command = [compiler, *sources, "-o", folder / "example", *app_links()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "example"


@pytest.mark.slow
def test_the_cpp_example_gives_the_sessions_tokens(program: Path, kernels_artifact: Path) -> None:
    session = Session.load(kernels_artifact)
    prompt = Tokenizer.from_file(str(kernels_artifact / "tokenizer.json")).encode("class Point:\n    def __init__(self, x").ids
    wanted = list(session.generate(prompt, max_new_tokens=20, eos_ids=[]))
    command = [program, kernels_artifact / "model.pte", *map(str, prompt)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    said = dict(line.rsplit(" ", 1) if i < 4 else line.split(" ", 1) for i, line in enumerate(done.stdout.splitlines()))
    assert (said["kept"], said["back"], said["nothing verified"]) == (f"{len(prompt)}", f"{len(prompt)}", "-1")
    assert [int(token) for token in said["plain"].split()] == wanted
    guessed = [int(token) for token in said["guessed"].split()]
    assert guessed == wanted[: len(guessed)]
    assert int(said["rejected"]) > 3


def test_it_runs_without_python_and_torch(program: Path) -> None:
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "libexecutorch.so" in listed
    assert "libhybridge_kernels.so" in listed
    assert not re.search(r"not found|lib(python|torch|c10)", listed), listed
