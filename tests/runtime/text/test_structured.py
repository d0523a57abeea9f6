"""Text that follows a grammar: it fits, and is the same with speculation as without."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Run
from numpy.typing import NDArray
from served import BYTES, END, session
from structures import PROMPT, SAMPLINGS, SCHEMA, Answer
from table import VOCABULARY, Table, table_session
from tokenizers import ByteLevelBPETokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

import hybridge
from hybridge.errors import GrammarError, UsageError
from hybridge.runtime import Context, GenerationStats, PromptLookup, Proposal, Sampling
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.integrations.causal_lm import CausalLM
from hybridge.runtime.text.grammars import Grammars


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTES, 260, [END])


class Wild:
    """Proposes whatever comes, right or wrong."""

    needs_hidden, is_cheap = False, True

    def __init__(self, vocab_size: int = 127) -> None:
        self.vocab_size = vocab_size

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(np.random.default_rng(len(context.tokens)).integers(32, self.vocab_size, limit).tolist())


def said(grammars: Grammars, drafter: Any, sampling: Sampling) -> bytes:
    new = session().generate(
        PROMPT, max_new_tokens=120, drafter=drafter, sampling=sampling,
        constraint=grammars.json_schema(SCHEMA).follow(),
    )  # fmt: skip
    return bytes(token for token in new if token != END)


def test_what_a_grammar_forces_is_verified_in_blocks(grammars: Grammars) -> None:
    stats = GenerationStats()
    constraint = grammars.json_schema(SCHEMA).follow()
    text = bytes(
        list(session(0.001).generate(PROMPT, max_new_tokens=120, eos_ids=[END], constraint=constraint, stats=stats))[:-1]
    )  # each call takes the same time
    assert b'", "kind": "' in text
    assert stats.accepted == stats.proposed == stats.forced > 15
    assert stats.decodes + stats.verifies < stats.new_tokens * 0.8


class Allowing:
    """Allows some tokens, by how many came before."""

    def __init__(self, allowed: Sequence[set[int]]) -> None:
        self.allowed, self.taken = allowed, 0

    def mask(self, logits: NDArray[np.float32]) -> None:
        refused = [token for token in range(VOCABULARY) if token not in self.allowed[self.taken % len(self.allowed)]]
        logits[refused] = -np.inf

    def take(self, token: int) -> None:
        assert token in self.allowed[self.taken % len(self.allowed)]
        self.taken += 1

    def forced(self) -> list[int]:
        return []

    def fitting(self, tokens: Sequence[int]) -> int:
        fits = [token in self.allowed[(self.taken + i) % len(self.allowed)] for i, token in enumerate(tokens)]
        return fits.index(False) if False in fits else len(fits)


class Drawing:
    """Draws its tokens; the grammar refuses some of them. repeats: all but the first are the first once more."""

    needs_hidden, is_cheap = False, True

    def __init__(self, repeats: bool) -> None:
        self.repeats, self.rng = repeats, np.random.default_rng(1)

    def propose(self, context: Context, limit: int) -> Proposal:
        tokens = self.rng.integers(0, VOCABULARY, limit).tolist()
        return Proposal(tokens[:1] * limit if self.repeats else tokens)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_sampled_text_keeps_the_constrained_distribution(repeats: bool) -> None:
    """In blocks of two draft tokens; also where the second, whether it fits or not, says which one the first was."""
    table, allowed, runs = Table(2, ends=False), [{1, 2}, {0, 2, 5}, {1, 2, 3}, {1, 4}], 4000
    running, counts = table_session(table), Counter[tuple[int, ...]]()
    drafter = Drawing(repeats)
    for seed in range(runs):
        running.reset()
        new = running.generate(
            [1, 2], max_new_tokens=4, drafter=drafter, block_length=3, sampling=Sampling(temperature=1.0, seed=seed),
            constraint=Allowing(allowed),
        )  # fmt: skip
        counts[tuple(new)] += 1
    statistic = 0.0
    for text in product(*allowed):
        chance, before = 1.0, [1, 2]
        for token, may in zip(text, allowed, strict=True):
            weights = np.exp(np.asarray(table(tuple(before)), np.float64))
            chance *= float(weights[token] / sum(weights[each] for each in may))
            before.append(token)
        statistic += (counts[text] - runs * chance) ** 2 / (runs * chance)
    assert sum(counts.values()) == runs
    assert statistic < 75, "chi-square of 35 degrees of freedom: 1 in 10,000"


def merged() -> tuple[Grammars, int, int]:
    """Grammars over tokens of several letters, their vocabulary, and what ends a text."""
    tokenizer = ByteLevelBPETokenizer()
    text = ['{"name": "abacus", "kind": "bridge", "numbers": [1, 2, 33]} the bridge and the abacus'] * 30
    tokenizer.train_from_iterator(text, vocab_size=330, special_tokens=["<|im_end|>"], show_progress=False)
    size, end = tokenizer.get_vocab_size() + 7, tokenizer.token_to_id("<|im_end|>")  # checkpoints have rows without a token
    return Grammars(Tokenizer(tokenizer.to_str().encode()), size, [end]), size, end


@pytest.mark.parametrize("name", SAMPLINGS)
def test_tokens_of_several_letters_fit_too(name: str) -> None:
    grammars, size, end = merged()
    rows = np.random.default_rng(7).normal(size=(size, size))
    texts = []
    for drafter in (None, PromptLookup(), Wild(size)):
        running = table_session(lambda text: rows[text[-1]], 400, vocab_size=size)
        constraint = grammars.json_schema(SCHEMA).follow()
        texts.append(list(running.generate([3, 4], max_new_tokens=300, drafter=drafter, eos_ids=[end], sampling=SAMPLINGS[name],
                                           constraint=constraint)))  # fmt: skip
        assert running.tokens == [3, 4, *texts[-1][:-1]]
    assert texts[0][-1] == end
    assert texts[0] == texts[1] == texts[2]
    assert set(json.loads(grammars._tokenizer.decode(texts[0][:-1]))) == {"name", "kind", "numbers"}


def test_forced_tokens_say_nothing_of_the_drafter(grammars: Grammars) -> None:
    """Else a drafter that is always wrong would be trusted for what a grammar has written."""
    proposed = []
    for is_the_same in (False, True):
        running, drafter, ticks = session(), Wild(), count()
        options: dict[str, Any] = {"eos_ids": [END], "clock": lambda ticks=ticks: float(next(ticks))}
        stats = GenerationStats()
        constraint = grammars.json_schema(SCHEMA).follow()
        first = drafter if is_the_same else Wild()
        list(running.generate(PROMPT, max_new_tokens=120, drafter=first, constraint=constraint, stats=stats, **options))
        assert stats.forced > 15
        running.reset()
        stats = GenerationStats()
        list(running.generate(PROMPT, max_new_tokens=30, drafter=drafter, stats=stats, **options))
        proposed.append(stats.proposed)
    assert proposed[1] <= proposed[0]


@pytest.mark.parametrize("grammar", ["regex", "lark"])
def test_a_text_that_does_not_fit_has_no_next_token(grammars: Grammars, grammar: str) -> None:
    follower = grammars.regex("a+").follow() if grammar == "regex" else grammars.lark("start: /a+/").follow()

    def go_on() -> None:
        follower.take(ord("b"))
        follower.mask(np.zeros(260, np.float32))

    with pytest.raises(GrammarError, match=r"cannot be followed any further|leaves no token"):
        go_on()


def test_a_grammar_that_leaves_no_token_ends_a_generation_with_an_error(grammars: Grammars) -> None:
    """The model has no token for what comes after "ab"."""
    wanted = grammars.regex("ab[yz]")
    running, new = table_session(lambda text: np.zeros(100), 50, vocab_size=100), list[int]()
    with pytest.raises(GrammarError, match="leaves no token to go on with"):
        new.extend(running.generate([97], max_new_tokens=10, eos_ids=[END], constraint=wanted.follow()))
    assert bytes(new) == b"ab"


@pytest.fixture(scope="module")
def ending() -> Tokenizer:
    """Bytes, "</think>" without a token of its own, and tokens that hold its last letter and more."""
    alphabet = bytes_to_unicode()
    newline, space = alphabet[10], alphabet[32]
    vocab = {text: byte for byte, text in alphabet.items()}
    merges = [(">", newline), (f">{newline}", newline), (">", space)]
    for one, other in merges:
        vocab[one + other] = len(vocab)
    tokenizer = ByteLevelBPETokenizer(vocab, merges)
    tokenizer.add_special_tokens(["<end>"])
    return Tokenizer(tokenizer.to_str().encode())


@pytest.mark.parametrize("kind", ["regex", "lark"])
@pytest.mark.parametrize(("last", "rest"), [(">", b"\n\nyes"), (">\n", b"\nyes"), (">\n\n", b"yes"), ("> ", None)])
def test_a_token_may_hold_the_end_of_the_reasoning_and_more(
    ending: Tokenizer, kind: str, last: str, rest: bytes | None
) -> None:
    """It begins the grammar if the grammar allows the rest, and is a part of the reasoning otherwise."""
    grammars = Grammars(ending, 260, [259])
    follower = (grammars.regex("yes|no") if kind == "regex" else grammars.lark('start: "yes" | "no"')).follow("</think>")
    for token in ending.encode("Well, <b>\n</b>? </think").ids:
        assert follower.fitting([token]) == 1
        follower.take(token)
    token = next(each for each in range(260) if ending.decode([each]) == last)
    logits = np.zeros(260, np.float32)
    follower.mask(logits)
    assert logits[259] == -np.inf, "the reasoning does not end the text"
    if rest is None:
        assert kind == "regex" or logits[token] == -np.inf
        return
    assert logits[token] == 0
    follower.take(token)
    for byte in rest:
        assert follower.fitting([byte]) == 1, bytes([byte])
        follower.take(byte)
    logits = np.zeros(260, np.float32)
    follower.mask(logits)
    assert np.flatnonzero(logits == 0).tolist() == [259]


def test_a_grammar_in_larks_syntax(grammars: Grammars) -> None:
    rules = 'start: greeting " " NAME\ngreeting: "hello" | "good evening"\nNAME: /[a-z]{2,5}/\n'
    new = list(session().generate(PROMPT, max_new_tokens=40, temperature=1.0, seed=1, constraint=grammars.lark(rules).follow()))
    assert re.fullmatch("(hello|good evening) [a-z]{2,5}", bytes(new[:-1]).decode())


def test_without_llguidance_schemas_and_expressions_are_followed(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert Grammars(BYTES, 260, [END]).json_schema(SCHEMA).follow().forced()
    with pytest.raises(UsageError, match=r"pip install 'hybridge\[lark\]'"):
        grammars.lark('start: "a"')


def test_refusals_say_what_is_wrong_and_nothing_of_how_grammars_are_made(grammars: Grammars) -> None:
    said = {
        'line 2, column 4: unknown name: "nothing"': lambda: grammars.lark('start: a\na: nothing'),
        "it is too complex": lambda: [
            (one := grammars.lark("start: /a{1000000}/").follow()).mask(np.zeros(260, np.float32)), one.take(97),
            one.mask(np.zeros(260, np.float32)),
        ],
        "doesn't satisfy the grammar": lambda: grammars.lark('start: "ab"').follow().take(ord("x")),
        "unclosed": lambda: grammars.lark("start: /(a/"),
        "a group is not closed": lambda: grammars.regex("(a"),
        "look-around": lambda: grammars.regex("(?=a)b"),
        "nonsense": lambda: grammars.json_schema({"type": "nonsense"}),
        "refer": lambda: grammars.json_schema({"$ref": "#"}),
    }  # fmt: skip
    for says, make in said.items():
        with pytest.raises(GrammarError) as error:
            make()
        message = str(error.value)
        assert says in message, message
        assert len(message) < 200
        assert not any(
            inside in message for inside in ("\n", "<state>", "<grammar>", "grm_prefix", "start: /", "regex parse error")
        )


# The command line and transformers' interface


def test_run_and_chat_write_what_fits(demo: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    texts = set()
    for how in ("--no-speculation", "--prompt-lookup"):
        done = cli("run", demo, "--prompt", "tell me: ", "--json-schema", schema, "--max-new-tokens", 200, "--json", how)
        assert done.code == 0, done.err
        texts.add(json.loads(done.raw)["text"].removeprefix("tell me: "))
    assert len(texts) == 1
    assert json.loads(texts.pop())["kind"] in ("abacus", "bridge")
    monkeypatch.setattr(sys, "stdin", io.StringIO("is it?\nreally?\n"))
    done = cli("chat", demo, "--regex", "(yes|no)", "--json")
    assert done.code == 0, done.err
    decoder, answers, rest = json.JSONDecoder(), [], done.raw.strip()
    while rest:
        answer, end = decoder.raw_decode(rest)
        answers.append(answer["content"])
        rest = rest[end:].strip()
    assert len(answers) == 2
    assert set(answers) <= {"yes", "no"}


def test_wrong_options_are_wrong_usage(demo: Path, tmp_path: Path, artifact: Path, cli: Run) -> None:
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.lark"
    schema.write_text("[]")
    rules.write_bytes(b"\xff")
    for words, says in {
        ("--json-schema", schema): "is no JSON schema",
        ("--json-schema", tmp_path / "nowhere"): "cannot be read",
        ("--grammar", rules): "no text in UTF-8",
        ("--regex", "(a"): "regular expression cannot be followed",
        ("--regex", "a", "--grammar", rules): "exclude each other",
    }.items():
        done = cli("run", demo, "--prompt", "a", *words)
        assert done.code == 2
        assert says in done.err
    done = cli("run", artifact, "--prompt", "a", "--regex", "a")
    assert done.code == 2
    assert "no token that ends a text" in done.err


def test_generate_takes_a_grammar(demo: Path) -> None:
    model = hybridge.load(demo)
    grammar = model.grammars.json_schema(Answer.model_json_schema())
    prompt = torch.tensor([list(b"how many? ")])
    for _ in range(2):  # a grammar serves any number of texts
        new = model.generate(prompt, grammar=grammar, max_new_tokens=60)[0, prompt.shape[1] :].tolist()
        assert new[-1] in model.session.manifest.eos_ids
        Answer.model_validate_json(bytes(new[:-1]))
    with pytest.raises(UsageError, match=r"hybridge\.load"):
        _ = CausalLM(model.session, model.generation_config).grammars
