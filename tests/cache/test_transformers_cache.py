"""A HybridCache as past_key_values of unmodified transformers models."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from transformers import PreTrainedModel
from zoo import VARIANTS, by_kind

from hybridge.cache import HybridCache
from hybridge.errors import CapacityError, SnapshotError, UsageError

FAMILIES = ["qwen3_5_text", "qwen3_next", "qwen3", "mistral"]
OWN_CACHE = {"glm5_next_text", "inkling2_text", "inkling_text", "minimax", "qwen4_exp_text", "rwkv7"}
"""Their forward reaches into transformers' own cache, or takes none."""
ONE_BY_ONE = {"falcon_mamba", "jamba", "mamba", "recurrent_gemma", "zamba"}
"""transformers' cached forward of several tokens starts their state from zero, whatever the cache; one at a time is right."""
CACHE_PARAMS = {"falcon_mamba", "mamba", "mamba2"}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_model(tiny_config(request.param))


def new_cache(model: PreTrainedModel, **sizes: int) -> HybridCache:
    return HybridCache.from_config(model.config, **({"max_seq_len": 64} | sizes))  # type: ignore[arg-type]


def ids(count: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(0, 131, (batch, count), generator=torch.Generator().manual_seed(count))


@torch.no_grad()
def test_generate_is_greedy_without_any_cache(model: PreTrainedModel) -> None:
    text = ids(9)
    got = model.generate(text, max_new_tokens=20, do_sample=False, past_key_values=new_cache(model))
    want = model.generate(text, max_new_tokens=20, do_sample=False, use_cache=False)
    assert got.tolist() == want.tolist()


@torch.no_grad()
def test_sampling_with_a_seed_is_the_same_with_and_without_a_cache(model: PreTrainedModel) -> None:
    texts = []
    for cache in ({"past_key_values": new_cache(model)}, {"use_cache": False}):
        torch.manual_seed(5)
        texts.append(model.generate(ids(9), max_new_tokens=20, do_sample=True, top_k=20, **cache).tolist())
    assert texts[0] == texts[1]


@torch.no_grad()
def test_a_padded_batch_generates_as_without_a_cache(model: PreTrainedModel) -> None:
    texts, mask = ids(9, batch=3), torch.ones(3, 9, dtype=torch.long)
    mask[1, :4] = mask[2, :1] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    got = model.generate(texts, past_key_values=new_cache(model, batch_size=3), **options)
    assert got.tolist() == model.generate(texts, use_cache=False, **options).tolist()


@torch.no_grad()
def test_turns_go_on_from_the_cache(model: PreTrainedModel) -> None:
    cache, options = new_cache(model), {"max_new_tokens": 8, "do_sample": False}
    first = model.generate(ids(9), past_key_values=cache, **options)
    second = torch.cat([first, ids(5)], dim=1)
    assert cache.get_seq_length() == 16
    got = model.generate(second, past_key_values=cache, **options)
    assert got.tolist() == model.generate(second, use_cache=False, **options).tolist()


@torch.no_grad()
def test_beams_take_their_state_along(model: PreTrainedModel) -> None:
    options = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False}
    got = model.generate(ids(9, batch=2), past_key_values=new_cache(model, batch_size=6), **options)
    assert got.tolist() == model.generate(ids(9, batch=2), use_cache=False, **options).tolist()


@torch.no_grad()
def test_assisted_generation_rolls_back_by_crop() -> None:
    """transformers allows it for attention only."""
    model, text = tiny_model(tiny_config("mistral")), ids(9).repeat(1, 3)
    plain = {"max_new_tokens": 20, "do_sample": False}
    got = model.generate(text, past_key_values=new_cache(model), prompt_lookup_num_tokens=3, **plain)
    assert got.tolist() == model.generate(text, use_cache=False, **plain).tolist()


def test_recurrent_state_refuses_to_be_cropped() -> None:
    """It cannot be, and cropping the rest would corrupt it silently."""
    cache = new_cache(tiny_model(tiny_config("qwen3_5_text")))
    assert not cache.is_croppable
    for tokens_to_remove in (-1, 5):
        with pytest.raises(UsageError, match="recurrent state cannot be cropped"):
            cache.crop(tokens_to_remove)


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
@pytest.mark.parametrize(("held", "tokens_to_remove"), [(0, 5), (0, -1), (7, 3), (7, 7), (7, -8), (7, 1000)])
@torch.no_grad()
def test_what_cannot_be_cropped_is_refused_and_changes_nothing(family: str, held: int, tokens_to_remove: int) -> None:
    """A positive number once was the length to keep, in transformers; it refuses those too."""
    model = tiny_model(tiny_config(family))
    cache = new_cache(model)
    if held:
        model(ids(held), past_key_values=cache)
    before = {name: buffer.clone() for name, buffer in cache.named_buffers()}
    with pytest.raises(ValueError, match=rf"crop\({tokens_to_remove}\) of a cache with {held} tokens.*{-held} to 0"):
        cache.crop(tokens_to_remove)
    assert all(torch.equal(buffer, before[name]) for name, buffer in cache.named_buffers())


@torch.no_grad()
def test_everything_and_nothing_can_be_cropped() -> None:
    model = tiny_model(tiny_config("qwen3"))
    cache = new_cache(model)
    model(ids(7), past_key_values=cache)
    cache.crop(0)
    assert cache.get_seq_length() == 7
    cache.crop(-7)
    assert cache.get_seq_length() == 0
    got = model(ids(9), past_key_values=cache).logits
    torch.testing.assert_close(got, model(ids(9), use_cache=False).logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_slots_keep_every_sequence_of_a_batch(model: PreTrainedModel) -> None:
    """Also under beam search, which has each sequence go on from another one: what is kept goes with it."""
    slot, text = torch.tensor([1]), ids(20, batch=3)
    cache = new_cache(model, batch_size=3, snapshot_slots=2)
    model(text[:, :8], past_key_values=cache)
    assert cache.write_slot(slot).tolist() == [8]
    model(text[:, 8:12], past_key_values=cache)
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    assert cache.read_slot(slot).tolist() == [8]
    got = model(text[:, 12:], past_key_values=cache).logits
    wanted = model(torch.cat([text[order, :8], text[:, 12:]], dim=1), use_cache=False).logits[:, 8:]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_window_goes_back_by_no_more_than_it_keeps() -> None:
    model = tiny_model(tiny_config("mistral"))
    cache = new_cache(model, verify_len=5)
    model(ids(20), past_key_values=cache)
    with pytest.raises(UsageError, match="verify_len = 5"):
        cache.crop(-6)
    cache.crop(-5)
    text = torch.cat([ids(20)[:, :15], ids(7)], dim=1)
    got = model(ids(7), past_key_values=cache).logits
    torch.testing.assert_close(got, model(text, use_cache=False).logits[:, 15:], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5_text", pytest.param("mistral", marks=pytest.mark.thorough)])
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_one_compiled_graph_serves_every_length(family: str) -> None:
    """Lengths are tensors, so nothing breaks the graph and nothing is compiled again as the cache fills."""
    model = tiny_model(tiny_config(family, num_hidden_layers=2))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    text, cache, got, start = ids(40), new_cache(model), [], 0
    for length in (5, 1, 1, 1, 17, 1, 1, 5):
        with torch.compiler.set_stance("default" if start < 30 else "fail_on_recompile"):
            got.append(compiled(text[:, start : start + length], past_key_values=cache).logits)
        start += length
    want = model(text[:, :start], use_cache=False).logits
    torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_snapshot_restore_and_reset_keep_the_buffers_where_they_are(model: PreTrainedModel) -> None:
    cache, text = new_cache(model), ids(20)
    addresses = {name: buffer.data_ptr() for name, buffer in cache.named_buffers()}
    model(text[:, :8], past_key_values=cache)
    snapshot = cache.snapshot()
    first = model(text[:, 8:], past_key_values=cache).logits
    cache.restore(snapshot)
    again = model(text[:, 8:], past_key_values=cache).logits
    torch.testing.assert_close(again, first)
    cache.reset()
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(
        model(text[:, :8], past_key_values=cache).logits, model(text[:, :8], use_cache=False).logits, rtol=1e-4, atol=1e-5
    )
    assert addresses == {name: buffer.data_ptr() for name, buffer in cache.named_buffers()}


@torch.no_grad()
def test_a_half_precision_model_gets_a_half_precision_cache(model: PreTrainedModel) -> None:
    model.config.dtype = torch.bfloat16
    model, text = model.to(torch.bfloat16), ids(20)
    cache = new_cache(model)
    got = torch.cat([model(piece, past_key_values=cache).logits for piece in text.split(7, dim=1)], dim=1)
    want = model(text, use_cache=False).logits
    assert {buffer.dtype for buffer in cache.buffers()} <= {torch.bfloat16, torch.float32, torch.int64}
    assert float((got - want).abs().max()) <= 0.03 * float(want.abs().max())


def test_a_snapshot_of_another_layout_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises(SnapshotError, match="laid out otherwise"):
        new_cache(model).restore(new_cache(model, max_seq_len=65, verify_len=9).snapshot())


@torch.no_grad()
def test_another_batch_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises((UsageError, RuntimeError), match=r"batch|[Ss]izes"):
        model(ids(3, batch=2), past_key_values=new_cache(model))


@pytest.mark.parametrize("family", [*FAMILIES, "lfm2", "granitemoehybrid", "mamba2"])
@torch.no_grad()
def test_too_many_tokens_are_refused_and_change_nothing(family: str) -> None:
    """The layers before the first attention had taken the tokens."""
    model = tiny_model(tiny_config(family))
    cache, name = new_cache(model, max_seq_len=16), "cache_params" if family in CACHE_PARAMS else "past_key_values"
    model(ids(7), use_cache=True, **{name: cache})
    before = {name: buffer.clone() for name, buffer in cache.named_buffers()}
    for count in (10, 17):
        with pytest.raises(CapacityError, match="max_seq_len = 16"):
            model(ids(count), use_cache=True, **{name: cache})
        assert all(torch.equal(buffer, before[name]) for name, buffer in cache.named_buffers())


@pytest.mark.parametrize("family", sorted(VARIANTS))
def test_a_model_that_ignores_the_cache_is_named_when_it_is_made(family: str) -> None:
    """Mamba-2 took a HybridCache as past_key_values silently, and its length stayed 0."""
    model = tiny_model(tiny_config(family))
    names = inspect.signature(model.forward).parameters
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        new_cache(model)
    assert any("pass this cache as cache_params" in str(each.message) for each in said) == ("cache_params" in names)


@pytest.mark.parametrize("wrong", [None, True, 1.5, float("nan"), 0, -1, 2**70, "8", b"8", [8], {}])
def test_wrong_sizes_are_refused_by_name(wrong: Any) -> None:
    config = tiny_config("qwen3")
    for name in ("max_seq_len", "prefill_chunk", "verify_len", "snapshot_slots", "batch_size", "dtype", "kv_dtype", "kernels"):
        if (name, wrong) in (("snapshot_slots", 0), ("max_seq_len", None)) or (
            wrong is None and name[-5:] in ("dtype", "rnels")
        ):
            continue
        with pytest.raises(UsageError, match=name):
            HybridCache.from_config(config, **{"max_seq_len": 16, name: wrong})
    cache = HybridCache.from_config(config, max_seq_len=16)
    for call in (cache.restore, *([] if wrong in (0, -1) else [cache.crop])):
        with pytest.raises(UsageError):
            call(wrong)


def test_the_default_length_comes_with_a_warning_and_not_from_the_config() -> None:
    config = tiny_config("llama", max_position_embeddings=10_000_000)
    with pytest.warns(UserWarning, match="2048"):
        assert HybridCache.from_config(config).sizes.max_seq_len == 2048


PIECES = {False: (5, 1, 17, 2, 1, 14), True: (9, *(1,) * 31)}


@pytest.mark.parametrize("family", by_kind(set(VARIANTS) - OWN_CACHE))
@torch.no_grad()
def test_pieces_give_the_uncached_logits(family: str) -> None:
    """transformers' cached multi-token forward restarts or drops the window for some families; ours may not."""
    model = lively(tiny_model(tiny_config(family)))
    text = torch.randint(0, 127, (2, 40), generator=torch.Generator().manual_seed(1))
    cache, got, start = HybridCache.from_config(model.config, max_seq_len=64, batch_size=2), [], 0
    for length in PIECES[family in ONE_BY_ONE]:
        options: dict[str, Any] = {"cache_params" if family in CACHE_PARAMS else "past_key_values": cache, "use_cache": True}
        if family == "bamba":  # does not ask the cache for its length
            options["position_ids"] = torch.arange(start, start + length)[None]
        got.append(model(text[:, start : start + length], **options).logits)
        start += length
    want = model(text, use_cache=False).logits
    torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=0, atol=2e-5 * float(want.abs().max()))
    assert cache.get_seq_length() == 40


def test_an_indexer_needs_a_session() -> None:
    model = tiny_model(tiny_config("glm5_next_text"))
    cache = HybridCache.from_config(model.config, max_seq_len=64)
    with pytest.raises(UsageError, match="eager_session"):
        model(torch.arange(9)[None], past_key_values=cache, use_cache=True)
