"""XNNPACK packs every weight once, and not once for each method of each session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from core_child import in_core
from store import exported
from tiny import save_checkpoint, tiny_config

from hybridge.runtime import ExportOptions

OPTIONS = ExportOptions(max_seq_len=64, prefill_chunk=16, verify_len=4, snapshot_slots=0, kernels="llm")
PROGRAM = """
    def own():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    bytes_ = [own()]
    wanted = list(session.generate([5, 6, 7], max_new_tokens=5, drafter=PromptLookup(), block_length=4))
    for _ in range(2):
        other = Session(model)
        assert list(other.generate([5, 6, 7], max_new_tokens=5)) == wanted
        bytes_.append(own())
    # The copy is there as long as a session needs it, and made anew where none did.
    session.close()
    other.reset()
    assert list(other.generate([5, 6, 7], max_new_tokens=5)) == wanted
    other.close()
    without = own()
    last = Session(model)
    assert list(last.generate([5, 6, 7], max_new_tokens=5)) == wanted
    print(own() - without, bytes_[1] - bytes_[0], bytes_[2] - bytes_[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
@pytest.mark.thorough
def test_sessions_share_one_copy_of_packed_weights(tmp_path: Path) -> None:
    config = tiny_config("qwen3", hidden_size=512, intermediate_size=2048, num_hidden_layers=1)
    model = save_checkpoint(tmp_path, config)
    weights = sum(each.nbytes for name, each in model.named_parameters() if "embed" not in name)
    assert weights > 12 << 20
    first, second, third = map(int, in_core(exported(tmp_path, OPTIONS), PROGRAM).split())
    assert 0.5 * weights < first < 1.5 * weights, "three methods"
    assert max(second, third) < 0.2 * weights
