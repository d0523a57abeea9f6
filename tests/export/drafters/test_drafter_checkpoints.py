"""Drafters' folders in the forms that are published, and those that make no drafter of a target."""

from pathlib import Path
from typing import Any

import pytest
import torch
from drafter_twins import Twin, dflash2_config, dflash_config, dspark_config, random_tensors, save_drafter
from tiny import lively, loaded_model, tiny_config, tiny_model
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache

from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.drafters.block import read_block_config
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.program.eager import LoadedDrafter, eager_session
from hybridge.runtime import ExportOptions, Session

OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=8, verify_len=6)
TARGET = tiny_config("qwen3_5_text")
LAYERS = ["full_attention", "sliding_attention"]

# z-lab/dflash tests/fixtures/dflash2-config.json, as it is.
PUBLISHED = {
    "architectures": ["DFlash2DraftModel"], "attention_bias": False, "is_causal": False,
    "dflash_config": {
        "block_size": 16, "conv_group_size": 16, "conv_kernel_size": 2, "final_logit_softcapping": 20.0,
        "mask_token_id": 201818, "output_multiplier": 0.19611613513818404, "selector_rank": 256, "selector_top_k": 16,
        "target_layer_ids": [1, 13, 25, 37, 49],
    },
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 6656, "intermediate_size": 19968,
    "layer_types": ["sliding_attention"] * 5, "max_position_embeddings": 131072, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 5, "num_key_value_heads": 8, "num_target_layers": 52,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "sliding_window": 2048,
    "vocab_size": 202048,
}  # fmt: skip


def load(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], options: ExportOptions = OPTIONS) -> Session:
    model = lively(tiny_model(TARGET))
    plan, options = plan_drafter(model.config, options, save_drafter(folder, config, tensors))
    assert plan is not None
    return eager_session(model, options, LoadedDrafter(plan, plan.load(loaded_model(folder, model))))


def test_a_published_config_is_read() -> None:
    found = read_block_config(Path("config.json"), PUBLISHED)
    assert found is not None
    assert (found.kind, found.block, found.windows, found.causal) == ("dflash2", 16, (2048,) * 5, (False,) * 5)
    assert found.taps == (2, 14, 26, 38, 50)
    assert found.selector is not None
    assert (found.selector.rank, found.selector.candidates, found.softcap) == (256, 16, 20.0)


def test_dsparks_block_counts_guesses_alone() -> None:
    found = read_block_config(Path("config.json"), dspark_config(TARGET, LAYERS, [0], block_size=9))
    assert found is not None
    assert (found.block, found.first_guess, found.neighbours) == (10, 0, True)
    counted = read_block_config(Path("config.json"), dspark_config(TARGET, LAYERS, [0], block_size=9, dspark_bonus_anchor=True))
    assert counted is not None
    assert counted.block == 9


def test_layers_that_are_not_named_are_spread_evenly() -> None:
    config = dflash_config(TARGET, ["full_attention"] * 4, [0], num_target_layers=64)
    del config["dflash_config"]["target_layer_ids"]
    found = read_block_config(Path("config.json"), config)
    assert found is not None
    assert found.target_layer_ids == (1, 21, 41, 61)


def test_a_model_is_no_drafter() -> None:
    assert read_block_config(Path("config.json"), TARGET.to_dict()) is None


def test_it_drafts_as_transformers_own_model_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = [0, 1]
    config = MuseGlimmerAssistantConfig(
        hidden_size=TARGET.hidden_size,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"rope_theta": 1000.0, "rope_type": "default"},
        block_size=6,
        mask_token_id=7,
        target_layer_ids=ids,
    )
    reference = lively(MuseGlimmerAssistantModel(config).eval())
    reference.config._attn_implementation = "eager"
    reference.save_pretrained(tmp_path / "drafter")
    model = lively(tiny_model(TARGET))
    plan, options = plan_drafter(model.config, OPTIONS, tmp_path / "drafter")
    assert plan is not None
    session = eager_session(model, options, LoadedDrafter(plan, plan.load(loaded_model(tmp_path, model))))
    tokens = torch.randint(0, 100, (23,), generator=torch.Generator().manual_seed(0)).tolist()
    for start, cut in ((0, 2), (2, 9), (9, 10), (10, 22)):
        session.prefill(tokens[start:cut])
        drafted = session.draft(session.hidden, tokens[start + 1 : cut + 1])
        with torch.no_grad():
            states = model(torch.tensor([tokens[:cut]]), output_hidden_states=True, use_cache=False).hidden_states
            noise = model.get_input_embeddings()(torch.tensor([[tokens[cut], *[7] * 5]]))
            context = torch.cat([states[index + 1] for index in ids], dim=-1)
            cache = DFlashCache(config=reference.config)
            cache.set_previous_accepted_tokens(cut)
            out = reference(noise_embeds=noise, context_hidden_states=context, past_key_values=cache).last_hidden_state
            wanted = model.get_output_embeddings()(out[:, 1:]).argmax(-1)[0].tolist()
        assert drafted.tokens == wanted


def test_copies_of_the_target_are_shared(tmp_path: Path) -> None:
    config, model = dspark_config(TARGET, LAYERS, [0, 1]), lively(tiny_model(TARGET))
    own = {"embed_tokens.weight": model.get_input_embeddings().weight, "lm_head.weight": model.get_output_embeddings().weight}
    tensors = {f"model.{name}": each for name, each in (random_tensors(config) | own).items()}
    session = load(tmp_path, config, tensors)
    session.prefill([1, 2, 3])
    embedding, head = (each.detach() for each in own.values())
    states = model(torch.tensor([[1, 2, 3]]), output_hidden_states=True, use_cache=False).hidden_states
    twin = Twin(config, random_tensors(config), embedding, head)
    assert session.draft(session.hidden, [2, 3, 4]).tokens == twin.guess(twin.taps(states), 4, 5)[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norm.weight": None}, "lacks .*norm.weight"),
        ({"other.weight": torch.zeros(2)}, "has the unknown .*other.weight"),
        ({"fc.weight": torch.zeros(2, 2)}, r"fc.weight in .* has shape \[2, 2\]"),
        ({"hidden_norm.weight": torch.full((TARGET.hidden_size,), float("nan"))}, "not finite"),
        ({"embed_tokens.weight": torch.zeros(TARGET.vocab_size, TARGET.hidden_size)}, "another embed_tokens.weight"),
    ],
)
def test_weights_that_make_no_drafter_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    config = dflash2_config(TARGET, LAYERS, [0, 1])
    tensors = {name: each for name, each in (random_tensors(config) | changes).items() if each is not None}
    with pytest.raises(CheckpointError, match=says):
        load(tmp_path, config, tensors)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"hidden_size": 80}, UsageError, "another target: its target's hidden size is 80"),
        ({"num_target_layers": 28}, UsageError, "another target: its target's number of layers is 28"),
        ({"vocab_size": 500}, UsageError, "another target: its target's vocabulary is 500"),
        ({"target_layer_ids": [0, 30]}, UsageError, "after 31 layers, and this model"),
        ({"mask_token_id": 9999}, UsageError, "mask token 9999"),
        ({"target_layer_ids": [0, 0]}, CheckpointError, "should be different layers"),
        ({"target_layer_ids": "all"}, CheckpointError, "should be a list of whole numbers"),
        ({"layer_types": ["full_attention"]}, CheckpointError, "should be 2 times"),
        ({"num_hidden_layers": 10**6, "layer_types": None}, CheckpointError, "is 1000000, but should be .* 1 to 64"),
        ({"block_size": 10**6}, CheckpointError, "block_size is 1000000, but should be a whole number of 2 to 512"),
        ({"num_key_value_heads": 4}, CheckpointError, "a divisor of the 6 heads"),
        ({"conv_group_size": 7}, CheckpointError, "a divisor of the hidden size"),
        ({"selector_top_k": None}, CheckpointError, "selector_top_k is None"),
        ({"rms_norm_eps": float("inf")}, CheckpointError, "rms_norm_eps is inf, but should be a number"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "strange"}}, CheckpointError, "rotary embedding cannot be made"),
        ({"architectures": ["Other"], "dflash_config": None}, UnsupportedModelError, "no drafter that"),
    ],
)
def test_configs_that_make_no_drafter_are_refused(tmp_path: Path, changes: dict[str, Any], error: type, says: str) -> None:
    config = dflash2_config(TARGET, LAYERS, [0, 1])
    tensors = random_tensors(config)
    own = {} if "dflash_config" in changes else config["dflash_config"]
    nested = {name: value for name, value in changes.items() if name in own}
    config |= {name: value for name, value in changes.items() if name not in nested}
    config["dflash_config"] = {**config["dflash_config"], **nested} if config["dflash_config"] else None
    with pytest.raises(error, match=says):
        load(tmp_path, config, tensors)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"draft_blocks": (4, 8)}, "longer than a verify takes, 6 tokens; give --verify-len 8"),
        ({"draft_blocks": (7,), "verify_len": 9}, "longer than the blocks of 6 that this drafter is made for"),
        ({"draft_blocks": (5, 3)}, "different lengths from 2 on, in order"),
        ({"verify_len": 1}, "a larger --verify-len"),
        ({"mtp": True, "tap_layers": (-1,)}, "--mtp and --drafter are two drafters"),
        ({"format": "onnx"}, "--drafter is for --format pte"),
    ],
)
def test_options_that_no_drafter_can_have_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = save_drafter(tmp_path, dflash_config(TARGET, LAYERS, [0]), {})
    with pytest.raises(UsageError, match=says):
        plan_drafter(TARGET, ExportOptions(**{**vars(OPTIONS), **changes}), folder)


def test_blocks_without_a_drafter_are_refused() -> None:
    with pytest.raises(UsageError, match="give --drafter FOLDER"):
        plan_drafter(TARGET, ExportOptions(draft_blocks=(4,)))


def test_what_it_reads_is_tapped_once(tmp_path: Path) -> None:
    folder = save_drafter(tmp_path, dflash_config(TARGET, LAYERS, [1, 0]), {})
    plan, options = plan_drafter(TARGET, ExportOptions(tap_layers=(-1,)), folder)
    assert plan is not None
    assert (plan.description.taps, options.tap_layers) == ((-1, 1), (-1, 1))
    assert (plan.description.blocks, options.draft_blocks) == ((6,), (6,))


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    save_drafter(tmp_path, dflash_config(TARGET, LAYERS, [0]), {})
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="JSON, but not an object"):
        plan_drafter(TARGET, OPTIONS, tmp_path)
