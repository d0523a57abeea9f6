"""``hybridge.load(OUT).generate(...)`` in transformers' style."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    StoppingCriteriaList,
    TextStreamer,
    pipeline,
)

import hybridge
from hybridge.cache import HybridCache
from hybridge.errors import CapacityError, CheckpointError, TokenError, UsageError
from hybridge.runtime import PromptLookup, Sampling
from hybridge.runtime.binding.drafters import AutoDrafter
from hybridge.runtime.integrations.causal_lm import CausalLM, read_generation_config

PROMPTS = ["def main(", "class Point:\n    def __init__(self", "The first argument is the name of", "i"]
N = len(PROMPTS[1])
"""Tokens of ``inputs``: the tokenizer has one for each character."""


@pytest.fixture(scope="module")
def model(artifact: Path) -> CausalLM:
    return hybridge.load(artifact)


@pytest.fixture(scope="module")
def tokenizer(artifact: Path) -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(artifact / "tokenizer.json"), eos_token="<end>")


@pytest.fixture(scope="module")
def eager(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def inputs(tokenizer: Any) -> Any:
    return tokenizer(PROMPTS[1], return_tensors="pt")


class Recorder:
    """A streamer that keeps the shapes and tokens it is given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.tokens: list[int] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        self.shapes.append(tuple(value.shape))
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


# The text


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_is_the_checkpoints_own_generate(model: CausalLM, tokenizer: Any, eager: Any, prompt: str) -> None:
    inputs = tokenizer(prompt, return_tensors="pt")
    got = model.generate(**inputs, max_new_tokens=50)
    assert got.tolist() == eager.generate(**inputs, max_new_tokens=50, do_sample=False, use_cache=False).tolist()
    cache = HybridCache.from_config(eager.config, max_seq_len=96)
    assert got.tolist() == eager.generate(**inputs, max_new_tokens=50, do_sample=False, past_key_values=cache).tolist()
    assert got.dtype == torch.int64


def test_a_drafter_changes_no_text(model: CausalLM, artifact: Path, inputs: Any) -> None:
    guessing = hybridge.load(artifact, drafter=PromptLookup())
    assert guessing.generate(**inputs, max_new_tokens=60).tolist() == model.generate(**inputs, max_new_tokens=60).tolist()
    assert guessing.stats.proposed > 0


def test_torchs_seed_decides_what_is_sampled(model: CausalLM, inputs: Any) -> None:
    texts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        texts.append(model.generate(**inputs, max_new_tokens=40, do_sample=True, temperature=0.9).tolist())
    assert texts[0] == texts[1] != texts[2]


def test_sampling_goes_through_our_sampler_with_transformers_defaults(model: CausalLM, inputs: Any) -> None:
    torch.manual_seed(3)
    got = model.generate(**inputs, max_new_tokens=40, do_sample=True, temperature=0.8, top_p=0.9, repetition_penalty=1.1)
    torch.manual_seed(3)
    seed = int(torch.randint(1 << 62, ()))
    wanted = Sampling(temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.1, seed=seed)
    model.session.reset()
    new = list(model.session.generate(inputs["input_ids"][0], max_new_tokens=40, sampling=wanted))
    assert got[0].tolist() == inputs["input_ids"][0].tolist() + new


def test_greedy_leaves_torchs_generator_alone(model: CausalLM, inputs: Any) -> None:
    before = torch.get_rng_state()
    model.generate(**inputs, max_new_tokens=3, temperature=0.7)
    assert torch.equal(before, torch.get_rng_state())


# How long it gets


@pytest.mark.parametrize(
    ("options", "new"),
    [
        ({}, 20),
        ({"max_new_tokens": 7}, 7),
        ({"max_length": N + 7}, 7),
        ({"max_length": 40, "max_new_tokens": 3}, 3),
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, 5),
        ({"generation_config": GenerationConfig(max_new_tokens=5), "max_new_tokens": 2}, 2),
        ({"max_new_tokens": 20, "max_time": 0.0}, 1),
        ({"max_new_tokens": 1000}, 96 - N + 1),
    ],
)
def test_lengths_are_transformers_own(model: CausalLM, inputs: Any, options: dict[str, Any], new: int) -> None:
    """Past the context's end there is one more token, which nothing has to be read after."""
    assert inputs["input_ids"].shape == (1, N)
    assert model.generate(**inputs, **options, eos_token_id=130).shape == (1, N + new)


def test_an_end_of_sequence_may_be_any_token(model: CausalLM, inputs: Any) -> None:
    new = model.generate(**inputs, max_new_tokens=40)[0, N:].tolist()
    for eos in (new[5], [130, new[5]]):
        got = model.generate(**inputs, max_new_tokens=40, eos_token_id=eos)[0, N:].tolist()
        assert got == new[: new.index(new[5]) + 1]


def test_the_artifacts_own_ends_are_found(model: CausalLM, tmp_path: Path) -> None:
    assert model.generation_config.eos_token_id is None
    assert read_generation_config(tmp_path, [7]).eos_token_id == [7], "without a generation_config.json"
    assert read_generation_config(tmp_path, []).eos_token_id is None


def test_a_prompt_that_leaves_no_room_is_refused(model: CausalLM, inputs: Any) -> None:
    with pytest.raises(UsageError, match="the prompt has 34 tokens, which leaves none of max_length = 34"):
        model.generate(**inputs, max_length=N)
    with pytest.raises(CapacityError, match="300 tokens do not fit"):
        model.generate(torch.ones(1, 300, dtype=torch.long))


# Streamers and stopping criteria


def test_a_streamer_gets_the_prompt_and_each_token(model: CausalLM, inputs: Any) -> None:
    recorder = Recorder()
    text = model.generate(**inputs, max_new_tokens=4, streamer=recorder)
    assert recorder.shapes == [(1, N), (1,), (1,), (1,), (1,)]
    assert recorder.tokens == text[0].tolist()
    assert recorder.ended == 1


def test_transformers_streamer_prints_the_text(
    model: CausalLM, tokenizer: Any, inputs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = model.generate(**inputs, max_new_tokens=30, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == tokenizer.decode(text[0, N:]) + "\n"


def test_stopping_criteria_see_the_whole_text(model: CausalLM, inputs: Any) -> None:
    seen: list[tuple[int, ...]] = []

    def fourth(ids: Tensor, scores: None) -> Tensor:
        seen.append(tuple(ids.shape))
        return torch.tensor([ids.shape[1] == N + 4])

    text = model.generate(**inputs, max_new_tokens=30, stopping_criteria=StoppingCriteriaList([fourth]))
    assert text.shape == (1, N + 4)
    assert seen == [(1, N + 1), (1, N + 2), (1, N + 3), (1, N + 4)]


def test_stop_strings_end_the_text_as_in_transformers(model: CausalLM, eager: Any, tokenizer: Any, inputs: Any) -> None:
    options = {"max_new_tokens": 60, "stop_strings": ["I<"], "tokenizer": tokenizer}
    text = model.generate(**inputs, **options)
    assert text.tolist() == eager.generate(**inputs, **options, do_sample=False, use_cache=False).tolist()
    assert tokenizer.decode(text[0, N:]).endswith("I<")
    with pytest.raises(UsageError, match="stop_strings need the tokenizer"):
        model.generate(**inputs, stop_strings=["I<"])


# What is refused


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences"),
        ({"min_new_tokens": 3}, "min_new_tokens"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores, return_dict_in_generate"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
        ({"logits_processor": [object()]}, "logits_processor"),
        ({"max_new_token": 5}, "max_new_token"),
        ({"generation_config": GenerationConfig(bad_words_ids=[[5]])}, "bad_words_ids"),
    ],
)
def test_other_options_are_refused_by_name(model: CausalLM, inputs: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"cannot do {named}; it takes input_ids, .* temperature"):
        model.generate(**inputs, **options)


def test_options_that_change_no_text_are_taken(model: CausalLM, inputs: Any) -> None:
    text = model.generate(**inputs, use_cache=False, pad_token_id=0, num_beams=1, logits_processor=None)
    assert text.tolist() == model.generate(**inputs).tolist()


def test_padding_is_refused(model: CausalLM, inputs: Any) -> None:
    mask = inputs["attention_mask"].clone()
    mask[0, 0] = 0
    with pytest.raises(TokenError, match="padding is not supported"):
        model.generate(inputs["input_ids"], attention_mask=mask)


def test_a_folder_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        hybridge.load(tmp_path)


# A script's other habits


def test_an_earlier_text_that_a_prompt_begins_like_is_not_read_again(model: CausalLM, inputs: Any) -> None:
    first = model.generate(**inputs, max_new_tokens=10)
    model.generate(torch.tensor([[10, 11, 12]]), max_new_tokens=3)
    second = model.generate(torch.cat([first, torch.tensor([[10, 32, 32]])], dim=1), max_new_tokens=10)
    assert model.stats.prompt_tokens == 4
    model.session.reset()
    model.checkpoints.clear()
    longer = torch.cat([first, torch.tensor([[10, 32, 32]])], dim=1)
    assert second.tolist() == model.generate(longer, max_new_tokens=10).tolist()
    assert model.stats.prompt_tokens == longer.shape[1]


def test_a_folder_of_checkpoints_is_there_the_next_time(artifact: Path, inputs: Any, tmp_path: Path) -> None:
    texts, read = [], []
    for _ in range(2):
        model = hybridge.load(artifact, cache_dir=tmp_path / "kept")
        first = model.generate(**inputs, max_new_tokens=6)
        read.append(model.stats.prompt_tokens)
        texts.append(model.generate(torch.cat([first, torch.tensor([[10, 32]])], dim=1), max_new_tokens=6).tolist())
        read.append(model.stats.prompt_tokens)
        model.generate(torch.tensor([[10, 11]]), max_new_tokens=2)  # keeps what the session has been at
        del model
        gc.collect()
    assert texts[0] == texts[1]
    assert read[:2] == [inputs["input_ids"].shape[1], 3]
    assert read[3] == 3


@pytest.mark.parametrize("length", [20, None])
def test_optimums_text_generation(model: CausalLM, tokenizer: Any, length: int | None) -> None:
    ids = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    text = tokenizer.decode(model.generate(ids, max_length=length or 96)[0], skip_special_tokens=True)
    assert model.text_generation(tokenizer, PROMPTS[0], max_seq_len=length) == text
    assert model.text_generation(tokenizer, PROMPTS[0], echo=False, max_seq_len=length) == text[len(PROMPTS[0]) :]
    with pytest.raises(UsageError, match="which leaves none of max_seq_len = 9"):
        model.text_generation(tokenizer, PROMPTS[0], max_seq_len=9)


# transformers' own callers


@torch.no_grad()
def test_a_call_returns_the_logits_of_an_uncached_forward(model: CausalLM, eager: Any, inputs: Any) -> None:
    before = model.generate(**inputs, max_new_tokens=5)
    got, wanted = model.eval().to("cpu")(**inputs, use_cache=False).logits, eager(**inputs, use_cache=False).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))
    assert model.generate(**inputs, max_new_tokens=5).tolist() == before.tolist()


@pytest.mark.parametrize(
    ("ids", "options", "error"),
    [
        (None, {}, TokenError),
        ([[1, 2]], {}, TokenError),
        (torch.ones(2, 3, dtype=torch.long), {}, TokenError),
        (torch.ones(1, 0, dtype=torch.long), {}, TokenError),
        (torch.tensor([[1.5]]), {}, TokenError),
        (torch.tensor([[True]]), {}, TokenError),
        (torch.tensor([[-1]]), {}, TokenError),
        (torch.ones(1, 5000, dtype=torch.long), {}, CapacityError),
        (torch.ones(1, 3, dtype=torch.long), {"attention_mask": [[1, 1, 1]]}, TokenError),
        (torch.ones(1, 3, dtype=torch.long), {"labels": torch.ones(1, 3)}, UsageError),
        (torch.ones(1, 3, dtype=torch.long), {"past_key_values": object()}, UsageError),
    ],
)
def test_a_call_refuses_what_it_cannot_do(model: CausalLM, ids: Any, options: dict[str, Any], error: type[UsageError]) -> None:
    with pytest.raises(error):
        model(ids, **options)
    if error is not UsageError:  # generate() names its own options
        with pytest.raises(error):
            model.generate(ids, max_new_tokens=2, **options)


def test_an_artifact_stays_on_the_cpu(model: CausalLM) -> None:
    for place in ("cuda", "meta", torch.float16):
        with pytest.raises(UsageError, match="CPU in float32"):
            model.to(place)


def test_a_pipeline_generates_what_generate_does(
    model: CausalLM, tokenizer: Any, inputs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended with an AttributeError; then with a list of all models of transformers, among which ours was not."""
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    (answer,) = pipe(PROMPTS[1], max_new_tokens=20, do_sample=False)
    wanted = model.generate(**inputs, max_new_tokens=20)
    assert answer["generated_text"] == tokenizer.decode(wanted[0], skip_special_tokens=True)
    assert "CausalLM" in repr(pipe)
    assert "not supported" not in caplog.text
    assert [len(each) for each in pipe([PROMPTS[0], PROMPTS[2]], max_new_tokens=3)] == [1, 1]


def test_drafts_are_proposed_by_default(model: CausalLM) -> None:
    """``hybridge.load`` decoded plainly, where the documents said that it drafts like the commands."""
    assert isinstance(model.drafter, AutoDrafter)
