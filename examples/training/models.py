"""The models' parts that target and draft share: the byte tokenizer, the special ids, the start of the decay."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from training.corpus import END, PAD

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CONTEXT = 4096
COMMON = {
    "vocab_size": 260,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": PAD,
}


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte, in byte order; the ByteLevel parts of a tokenizer speak these."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Token id = byte value; no merges, so any UTF-8 text makes the round trip."""
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    end, *_, pad = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end,
        eos_token=end,
        pad_token=pad,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build(config: Qwen3_5TextConfig) -> Qwen3_5ForCausalLM:
    """Random weights, float32 for training."""
    model = Qwen3_5ForCausalLM(config)
    ids = GenerationConfig(bos_token_id=END, eos_token_id=END, pad_token_id=PAD)
    model.generation_config = ids
    remember_longer(model)
    return model


def build_target() -> Qwen3_5ForCausalLM:
    """Three linear-attention layers to one full-attention layer."""
    return build(Qwen3_5TextConfig(**COMMON, hidden_size=256, num_hidden_layers=4, tie_word_embeddings=True))


def build_draft() -> Qwen3_5ForCausalLM:
    """One linear-attention layer, and a head of its own."""
    kinds = ["linear_attention"]
    narrow = {"hidden_size": 192, "num_hidden_layers": 1, "layer_types": kinds, "tie_word_embeddings": False}
    return build(Qwen3_5TextConfig(**COMMON | narrow))


@torch.no_grad()
def remember_longer(model: Qwen3_5ForCausalLM) -> None:
    """Start the decay at Mamba's steps of 0.001 to 0.1: the stock start forgets within a few bytes."""
    for layer in model.model.layers:
        if layer.block_type != "linear_attention":
            continue
        steps = torch.logspace(-3, -1, len(layer.linear_attn.dt_bias))
        layer.linear_attn.dt_bias.copy_(steps.expm1().log())
        layer.linear_attn.A_log.copy_(torch.linspace(1, 8, len(steps)).log())
