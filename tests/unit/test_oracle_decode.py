"""The oracle against Hugging Face transformers (full KV, and evicted KV as attention masks) and its trigger arithmetic."""
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from oracle.decode import OracleConfig, generate
from oracle.model import Qwen3
from oracle.reasoner import EOS, MODEL, detokenize, tasks

SMALL = OracleConfig(budget=16, block=8, window=4, sinks=2, policy="zipage", recency=0.25, spread=1)


@pytest.fixture(scope="module")
def reasoner():
    return Qwen3(MODEL), Qwen3ForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Random weights, other shapes than the reasoner's (3 query heads per KV head, tied head), large enough to be lively."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, initializer_range=0.4, max_position_embeddings=512,
    )  # fmt: skip
    config._attn_implementation = "eager"
    reference = Qwen3ForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("tiny")
    reference.save_pretrained(folder)
    return Qwen3(folder), reference


def tiny_prompt(length):
    return [(7 * i * i + 3 * i + 11) % 96 for i in range(length)]


def _use_mask(bias, module, args, kwargs):
    return args, kwargs | {"attention_mask": bias}


@torch.inference_mode()
def greedy_under_masks(reference, ids, masks=None):
    """transformers' argmax after every position of ids; masks bool [L, H, T, T]: who sees whom (None: causal)."""
    hooks = []
    for layer, visible in zip(reference.model.layers, masks if masks is not None else ()):
        group = reference.config.num_attention_heads // reference.config.num_key_value_heads
        bias = torch.where(visible.repeat_interleave(group, 0), 0.0, torch.finfo(torch.float32).min)[None]
        hooks.append(layer.register_forward_pre_hook(partial(_use_mask, bias), with_kwargs=True))
    logits = reference(torch.tensor([ids]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits.argmax(-1).tolist()


def eviction_masks(reference, compressions, total, start):
    """bool [L, H, total, total]: tokens fed after a compression do not see the candidates that it dropped."""
    shape = (reference.config.num_hidden_layers, reference.config.num_key_value_heads, total, total)
    visible = torch.ones(shape, dtype=torch.bool).tril()
    for compression in compressions:
        kept = torch.zeros(shape[:2] + (compression.true_len,), dtype=torch.bool).scatter_(2, compression.kept, True)
        visible[:, :, compression.true_len :, start : compression.true_len] &= kept[:, :, None, start:]
    return visible


@pytest.mark.parametrize("family", tasks.FAMILIES)
def test_full_kv_is_greedy_transformers_and_solves(reasoner, family):
    oracle, reference = reasoner
    problem = tasks.gen(family, "test-0", 200)
    prompt, gold = problem.ids()
    result = generate(oracle, prompt, len(gold) + 32, eos_id=EOS)
    # Every token is transformers' argmax given the tokens before it: the same event as equal greedy decoding.
    assert greedy_under_masks(reference, prompt + result.tokens)[len(prompt) - 1 : -1] == result.tokens
    assert result.tokens == gold and problem.check(detokenize(result.tokens))
    assert len(result.margins) == len(gold) > 150 and min(result.margins) > 1


def test_full_kv_equals_transformers_generate(reasoner, tiny):
    for (oracle, reference), prompt in ((reasoner, tasks.gen("chain", "test-1", 150).ids()[0]), (tiny, tiny_prompt(33))):
        ids = torch.tensor([prompt])
        knobs = dict(attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, pad_token_id=0)
        out = reference.generate(ids, max_new_tokens=40, **knobs)
        assert out[0, len(prompt) :].tolist() == generate(oracle, prompt, 40).tokens


def test_eos_ends_the_output_unless_ignored(tiny):
    full = generate(tiny[0], tiny_prompt(20), 40).tokens
    eos = full[12]
    first = full.index(eos)
    assert generate(tiny[0], tiny_prompt(20), 40, eos_id=eos).tokens == full[: first + 1]
    assert generate(tiny[0], tiny_prompt(20), 40, eos_id=eos, ignore_eos=True).tokens == full


def test_long_prefill_in_chunks(tiny):
    oracle, _ = tiny
    logits = []
    for chunk in (7, 200):
        cache = oracle.new_cache(200)
        logits.append(oracle.prefill(tiny_prompt(200), cache, chunk))
        assert cache.kv_len == cache.true_len == 200
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_a_budget_that_is_never_reached_changes_nothing(tiny):
    full = generate(tiny[0], tiny_prompt(20), 60)
    # 60 tokens take 59 decode steps; when the last is planned, 58 decoded tokens are in the row.
    for prefix, candidates in (("keep", 58), ("compress", 78)):
        under = replace(SMALL, budget=candidates + 1 - 8, prefix=prefix)
        result = generate(tiny[0], tiny_prompt(20), 60, under)
        assert result.compressions == [] and (result.tokens, result.margins) == (full.tokens, full.margins)
        reached = generate(tiny[0], tiny_prompt(20), 60, replace(under, budget=candidates - 8))
        assert [c.tokens for c in reached.compressions] == [59]
        assert reached.tokens[:59] == full.tokens[:59] and reached.margins[59] != full.margins[59]


def test_trigger(tiny):
    def times(prompt_len, prefix, retract_after=()):
        config = replace(SMALL, prefix=prefix)
        result = generate(tiny[0], tiny_prompt(prompt_len), 56, config, retract_after=retract_after)
        return [(c.count, c.tokens, c.true_len, c.kv_len) for c in result.compressions]

    # keep: 24 decoded tokens, so 25 sampled; then every 8
    assert times(10, "keep") == [(0, 25, 34, 34), (1, 33, 42, 34), (2, 41, 50, 34), (3, 49, 58, 34)]
    # the prompt counts in compress; a prompt beyond the cap waits for a window of decoded queries
    assert times(10, "compress") == [(n, 15 + 8 * n, 24 + 8 * n, 24) for n in range(6)]
    assert times(40, "compress") == [(0, 5, 44, 44)] + [(n, 5 + 8 * n, 44 + 8 * n, 24) for n in range(1, 7)]
    assert times(16, "auto") == times(16, "keep") and times(17, "auto") == times(17, "compress")
    # retracted with 30 out: all of them are prefilled, four more are decoded, then 34 - c0 >= 24 is due at once
    assert times(10, "keep", [30]) == [(0, 25, 34, 34), (0, 35, 44, 44), (1, 43, 52, 34), (2, 51, 60, 34)]
    # before the first compression, a retraction moves nothing: 24 decoded or prefilled outputs are due all the same
    assert times(10, "keep", [10, 18]) == times(10, "keep")
    # retracted with 22 out: the cap is reached after two decoded tokens, but the window needs four
    assert times(10, "keep", [22])[0] == (0, 27, 36, 36)


@pytest.mark.parametrize("policy", ["zipage", "attention", "recent", "random"])
@pytest.mark.parametrize("prefix, sinks", [("keep", set()), ("compress", {0, 1})])
def test_kept_tokens_are_candidates_and_include_the_forced(tiny, policy, prefix, sinks):
    result = generate(tiny[0], tiny_prompt(40), 56, replace(SMALL, policy=policy, prefix=prefix))
    start = 0 if prefix == "compress" else 40
    assert len(result.kept) >= 4
    for layer in range(2):
        for head in range(2):
            candidates = set(range(start, result.compressions[0].true_len))
            for compression, kept in zip(result.compressions, result.kept):
                mine, end = kept[layer][head], compression.true_len
                assert len(set(mine)) == 16 and mine == sorted(mine) and set(mine) <= candidates
                assert sinks | set(range(end - 4, end)) < set(mine)
                if policy == "recent" and not sinks:
                    assert mine == list(range(end - 16, end))
                candidates = set(mine) | set(range(end, end + 8))


def test_every_knob_matters_and_runs_repeat(tiny):
    def kept(retract_after=(), **knobs):
        config = replace(SMALL, recency=0.0, **{"lam": 0.8} | knobs)
        return generate(tiny[0], tiny_prompt(10), 72, config, retract_after=retract_after).kept

    zipage, random = kept(), kept(policy="random")
    for sets in (zipage, random):
        heads = [head for layer in sets[0] for head in layer]
        assert all(heads[i] != heads[j] for i in range(len(heads)) for j in range(i))
    assert random == kept(policy="random", seed=2**32) != kept(policy="random", seed=1)
    for knobs in (
        {"lam": 0.2}, {"alpha": 0.0}, {"tau": 0.01}, {"redundancy": "flash"}, {"redundancy": "none"},
        {"pooling": "never"}, {"pooling": "always"}, {"policy": "attention"}, {"policy": "random"}, {"window": 5},
        {"passes": 1},
    ):  # fmt: skip
        assert kept(**knobs) != zipage, knobs
    # the attention control is zipage with alpha 0, lambda 1 and no pooling; without redundancy lambda is ignored
    attention = kept(policy="attention")
    assert attention == kept(alpha=0.0, lam=1.0, pooling="never", passes=1)
    assert attention == kept(alpha=0.0, redundancy="none", pooling="never", passes=1)
    # a retraction before the first compression only replaces rows by equal ones
    assert kept([12], passes=1) == kept(passes=1) and kept([12], policy="random") == random
    assert kept([12]) != zipage  # but windows before the last one do not score what was prefilled


@pytest.mark.parametrize("prompt_len, knobs, retract_after", [
    (10, {}, ()),
    (40, {"prefix": "compress"}, ()),
    (10, {"policy": "attention"}, (30,)),
    (40, {"policy": "random", "prefix": "compress", "recency": 0.0}, (9, 40)),
    (10, {"redundancy": "flash", "pooling": "always", "recency": 0.0}, (22, 45)),
    (10, {"policy": "recent"}, ()),
])  # fmt: skip
def test_evicted_decode_is_transformers_under_masks(tiny, prompt_len, knobs, retract_after):
    # The masks know positions only, so this fails if keys, values and positions part ways when rows move.
    oracle, reference = tiny
    config, prompt = replace(SMALL, **knobs), tiny_prompt(prompt_len)
    result = generate(oracle, prompt, 72, config, retract_after=retract_after)
    start = 0 if config.prefix == "compress" else prompt_len
    edges = [0, *retract_after, 72]
    for first, last in zip(edges, edges[1:]):  # tokens first..last come from one prefill and its decode steps
        compressions = [c for c in result.compressions if first < c.tokens < last]
        ids = prompt + result.tokens[:last]
        masks = eviction_masks(reference, compressions, len(ids), start)
        assert greedy_under_masks(reference, ids, masks)[prompt_len + first - 1 : -1] == result.tokens[first:last]
    assert len(result.compressions) >= 4 and result.tokens != generate(oracle, prompt, 72).tokens


def test_recent_keeps_short_loops_right(reasoner):
    # The working set is about 60 tokens: 96 recent ones answer like full KV, 32 must not.
    problem = tasks.gen("loop", "test-0", n=6, lines=3, nvars=4, nconst=1, maxlag=1)
    prompt, gold = problem.ids()
    config = OracleConfig(budget=96, block=32, window=16, policy="recent", recency=0.0)
    result = generate(reasoner[0], prompt, len(gold) + 8, config, eos_id=EOS)
    assert result.tokens == gold and problem.check(detokenize(result.tokens))
    assert len(result.compressions) == (len(gold) - 2 - 96) // 32 >= 9
    starved = generate(reasoner[0], prompt, 100, replace(config, budget=32), eos_id=EOS)
    assert starved.tokens != gold[:100]


@pytest.mark.parametrize("knobs", [{"window": 9}, {"recency": 0.95}, {"sinks": 13}, {"window": 8, "sinks": 9}])
def test_config_refuses_a_budget_that_cannot_hold_the_forced_tokens(knobs):
    with pytest.raises(ValueError, match="budget"):
        replace(SMALL, **knobs)
