"""The chunked feeder against transformers' own forward and against attention written as one masked matrix."""

import copy
import dataclasses
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.language import passkey, report
from benchmarks.language.documents import Document, clean
from benchmarks.language.guards import GUARDS, GuardedConfig
from benchmarks.language.keys import block_similarities, counts
from benchmarks.language.score import compressed_pass, first_cut, full_pass
from benchmarks.language.stream import Stream
from benchmarks.language.settings import make_configs
from benchmarks.language_model import arguments
from benchmarks.passkey import render as passkey_table
from zipage_sglang.config import ZipageConfig


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(4)
    config = LlamaConfig(vocab_size=61, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
                         num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(61, (120,), generator=torch.Generator().manual_seed(1)).tolist()


def config_of(policy="recent", **options):
    return ZipageConfig(**(dict(budget=24, block=12, window=5, policy=policy, recency=0.0) | options))


def fed(model, ids, config, prompt_len, chunk):
    stream = Stream(copy.deepcopy(model), config, prompt_len, len(ids), kv_dtype=torch.float32)
    hidden = torch.cat([h for _, h in stream.chunks(ids, chunk)])
    return model.lm_head(hidden), stream


@torch.inference_mode()
def own_forward(model, ids, mask=None):
    """transformers' forward; mask: bool [n, n], None for causal."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    if mask is not None:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)[None, None]
    return plain(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]


@pytest.mark.parametrize("chunk", [120, 50, 7, 1])
@pytest.mark.parametrize("config", [None, config_of("zipage", budget=200)])
@torch.inference_mode()
def test_without_a_compression_it_is_the_models_own_forward(model, ids, config, chunk):
    logits, stream = fed(model, ids, config, 10, chunk)
    assert stream.rows.evicted == 0
    assert (logits - own_forward(model, ids)).abs().max() < 1e-4


@pytest.mark.parametrize("prefix, sinks", [("keep", 4), ("compress", 3), ("compress", 0)])
@torch.inference_mode()
def test_recent_policy_is_a_mask(model, ids, prefix, sinks):
    """Each token sees what the latest compression before it left, worked out from lengths alone, and what came since."""
    config, prompt = config_of(prefix=prefix, sinks=sinks), 9
    logits, stream = fed(model, ids, config, prompt, 50)
    always = prompt if prefix == "keep" else sinks
    left = config.budget if prefix == "keep" else config.budget - sinks  # of the latest tokens
    first = (prompt if prefix == "keep" else 0) + config.cap
    mask = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    for i in range(len(ids)):
        before = None if i < first else first + (i - first) // config.block * config.block
        for j in range(i + 1):
            mask[i, j] = before is None or j < always or j >= before - left
    assert stream.state.count == (len(ids) - 1 - first) // config.block + 1
    assert (logits - own_forward(model, ids, mask)).abs().max() < 1e-4


@pytest.mark.parametrize("policy, recency", [("recent", 0), ("random", 0.5), ("attention", 0), ("zipage", 0), ("zipage", 0.5)])
@torch.inference_mode()
def test_chunk_size_does_not_matter(model, ids, policy, recency):
    config = config_of(policy, recency=recency)
    whole, stream = fed(model, ids, config, 9, 64)
    assert stream.state.count == 7 and stream.rows.length == 9 + 24 + 3
    for chunk in (5, 2):
        parts, other = fed(model, ids, config, 9, chunk)
        torch.testing.assert_close(parts, whole, atol=2e-4, rtol=0)
        kept = slice(1, 1 + stream.rows.length)
        for mine, theirs in zip(other.rows.k, stream.rows.k):
            torch.testing.assert_close(mine[kept], theirs[kept], atol=2e-4, rtol=0)


def first_layer_queries(model, ids, first, last):
    """Post-RoPE queries of tokens [first, last) in layer 0, which sees nothing but embeddings: [n, Hq, D]."""
    layer = model.model.layers[0]
    x = layer.input_layernorm(model.model.embed_tokens(torch.tensor(ids[first:last])))
    cos, sin = (t[0][:, None] for t in model.model.rotary_emb(x, torch.arange(first, last)[None]))
    q = layer.self_attn.q_proj(x).view(last - first, 6, 8)
    return q * cos + torch.cat([-q[..., 4:], q[..., :4]], -1) * sin


def first_layer_values(model, ids):
    """Values of tokens in layer 0: [n, H, D]."""
    layer = model.model.layers[0]
    return layer.self_attn.v_proj(layer.input_layernorm(model.model.embed_tokens(torch.tensor(ids)))).view(len(ids), 2, 8)


@torch.inference_mode()
def test_attention_policy_keeps_what_the_last_queries_look_at(model, ids):
    """The first compression in the first layer, from the projections of that layer alone."""
    config, prompt = config_of("attention"), 9
    stream = Stream(copy.deepcopy(model), config, prompt, len(ids), kv_dtype=torch.float32)
    n = prompt + config.cap
    stream.feed(ids[:n])
    keys = stream.rows.k[0][1 : n + 1].clone()
    q = first_layer_queries(model, ids, n - 5, n)
    future = torch.arange(n) > torch.arange(n - 5, n)[:, None]
    stream.feed(ids[n : n + 1])
    for head in range(2):
        looks = torch.einsum("wgd,td->gwt", q[:, 3 * head : 3 * head + 3], keys[:, head]) * 8**-0.5
        score = looks.masked_fill(future, -torch.inf).softmax(-1).amax(0).mean(0)[prompt:]
        score[-5:] = torch.inf
        expected = sorted((prompt + score.topk(config.budget).indices).tolist())
        kept = stream.rows.k[0][1 + prompt : 1 + prompt + config.budget, head]
        found = [int((keys[:, head] - k).abs().sum(-1).argmin()) for k in kept]
        assert sorted(found) == expected


@torch.inference_mode()
def test_windows_before_the_last_one_score_too(model, ids):
    stream = Stream(copy.deepcopy(model), config_of("zipage", passes=2), 9, len(ids), kv_dtype=torch.float32)
    enqueue, seen = stream.compressor._enqueue, []

    def checked(jobs, snapshot, scoring):
        (job,) = jobs
        end = job.kv_len + job.evicted
        torch.testing.assert_close(stream.rows.query_cache[0][job.query_rows], first_layer_queries(model, ids, end - 5, end))
        seen.append((job.kv_len - 9, job.stored, job.seen, job.windows, scoring))
        enqueue(jobs, snapshot, scoring)

    stream.compressor._enqueue = checked
    for _ in stream.chunks(ids, 7):
        pass
    assert seen[:4] == [(31, 0, 0, 0, True), (36, 0, 31, 1, False), (31, 24, 0, 0, True), (36, 24, 31, 1, False)] and len(seen) == 2 * stream.state.count


@torch.inference_mode()
def test_every_compression_scores_with_the_last_queries_in_order(model, ids):
    stream = Stream(copy.deepcopy(model), config_of("attention"), 9, len(ids), kv_dtype=torch.float32)
    run, due = stream.compressor.run, []

    def checked(jobs):
        stored = stream.rows.query_cache[0][jobs[0].query_rows]
        torch.testing.assert_close(stored, first_layer_queries(model, ids, stream.fed - 5, stream.fed))
        due.append((stream.fed, jobs[0].kv_len, jobs[0].evicted))
        run(jobs)

    stream.compressor.run = checked
    for _ in stream.chunks(ids, 5):
        pass
    assert due == [(45 + 12 * i, 45, 12 * i) for i in range(7)]


@torch.inference_mode()
def test_a_pass_that_starts_from_the_full_one(model, ids):
    document, config = Document("d", "text", ids, 9), config_of("zipage")
    other = config_of("zipage", budget=500)
    own = copy.deepcopy(model)
    cut = first_cut(config, document)
    full = full_pass(own, document, {cut, 101}, config.scored)
    record = compressed_pass(own, document, config, full)
    logits, stream = fed(model, ids, config, 9, 12)
    nll = torch.nn.functional.cross_entropy(logits[cut:-1], torch.tensor(ids[cut + 1 :]))
    plain = own_forward(model, ids)
    assert record["tokens"] == len(ids) - 1 - cut and record["compressions"] == stream.state.count
    assert record["nll_full"] == pytest.approx(
        torch.nn.functional.cross_entropy(plain[cut:-1], torch.tensor(ids[cut + 1 :])).item(), abs=0.01)
    assert record["nll"] == pytest.approx(nll.item(), abs=0.03)  # keys and values are kept in bf16 there
    assert first_cut(other, document) > len(ids)


def test_a_chunk_must_not_cross_a_compression(model, ids):
    stream = Stream(copy.deepcopy(model), config_of(), 9, len(ids))
    with pytest.raises(ValueError, match="due after 45"):
        stream.feed(ids[:46])


def test_clean_joins_wrapped_lines_and_parts_paragraphs():
    raw = "Title\n\nOne line\nand another.Next part\n  goes on.\n \nLast   one."
    assert clean(raw, "One", True) == "One line and another.\n\nNext part goes on.\n\nLast one."
    assert clean("a\\nb", "a", False) == "a\nb"


def test_settings_by_name():
    args = arguments(["--budgets", "256", "--policies", "full,recent,random,zipage@0.25,zipage@0/1", "--recency", "0,0.5", "--lam", "0.2,0.5"])
    configs = make_configs(args)
    assert list(configs) == ["256 recent", "256 random r 0", "256 random r 0.5",
                             "256 zipage r 0.25 lightning alpha 0.8 lam 0.2 windows 8",
                             "256 zipage r 0.25 lightning alpha 0.8 lam 0.5 windows 8",
                             "256 zipage r 0 lightning alpha 0.8 lam 0.2", "256 zipage r 0 lightning alpha 0.8 lam 0.5"]
    assert [c.recency for c in configs.values()] == [0, 0, 0.5, 0.25, 0.25, 0, 0]


def test_latest_similar_key_of_a_block():
    keys = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [2, 0], [0, -1]])[:, None]  # the fifth is no whole block
    found = counts(block_similarities(keys, 4))
    assert found["similar"].tolist() == [[[2, 2, 0, 2]]]
    assert found["behind"].tolist() == [[[0, 0, 4, 2]]]
    assert found["newer"].tolist() == [[[True, True, False, False]]]


def test_tables_are_paired_by_document():
    nll = {("a", "256 recent"): 2.5, ("b", "256 recent"): 3.1, ("a", "256 random r 0"): 2.3, ("b", "256 random r 0"): 3.0}
    records = [dict(document=d, kind="text", setting=s, budget=256, tokens=10, nll=x, nll_full=dict(a=2.0, b=3.0)[d],
                    agreement=0.5, compressions=3) for (d, s), x in nll.items()]
    assert "+0.3000" in report.against_full(records, "text").splitlines()[2]  # mean of .5 and .1
    assert "-0.1500" in report.against_each_other(records, "all", "256 recent")
    assert "2 of 2" in report.against_each_other(records, "all", "256 recent")
    assert "own answers" not in report.render(records)


class Words:
    """A tokenizer of one id per character, as far as `place` looks at it."""

    def __call__(self, text):
        return [ord(c) for c in text]


def test_every_quarter_behind_the_prompt_holds_one_key():
    sentences = [f"Sentence number {i} says nothing much." for i in range(200)]
    keys = {"Rome": "12345", "Oslo": "54321", "Paris": "11111", "Vienna": "90909"}
    for seed in range(20):
        case = passkey.place(sentences, keys, 1600, 200, random.Random(seed), Words())
        text = "".join(map(chr, case.ids))
        assert len(case.ids) == 1600 and case.prompt_len == 200
        filler = 1600 - sum(len(passkey.said(n, k)) for n, k in keys.items())
        for i, (question, (name, key)) in enumerate(zip(case.questions, keys.items())):
            at = text.index(passkey.said(name, key))
            assert question.depth == 1600 - at - len(passkey.said(name, key)) > 0
            before = at - sum(len(passkey.said(n, k)) for n, k in list(keys.items())[:i])
            width = (filler - 200 - passkey.LONGEST) / 4
            assert 200 + i * width <= before <= 200 + (i + 1) * width + passkey.LONGEST
            assert "".join(map(chr, question.ids)) == passkey.asked(name) + " " + key
            assert question.answer == len(key) + 1


def test_too_little_text_for_the_keys_is_an_error():
    with pytest.raises(ValueError, match="tokens of text"):
        passkey.place(["Too short."], {"Rome": "12345"}, 900, 200, random.Random(0), Words())


@pytest.mark.parametrize("config", [None, config_of("zipage", budget=48), config_of("recent")])
@torch.inference_mode()
def test_recall_is_greedy_decoding_from_the_rows_that_the_document_left(model, ids, config):
    questions = [[3, 1, 4, 1], [5, 9, 2], [6, 5, 3, 5, 8]]
    answers = []
    for question in questions:  # decoded token by token, each question by itself
        stream = Stream(copy.deepcopy(model), config, 10, len(ids) + 8, kv_dtype=torch.float32)
        for _ in stream.chunks(ids, 50):
            pass
        if config:
            stream.config = dataclasses.replace(config, budget=config.budget + 50)
        out = list(question)
        hidden = stream.feed(question)
        for _ in range(3):
            out.append(int(stream.model.lm_head(hidden[-1:]).argmax()))
            hidden = stream.feed(out[-1:])
        answers.append(out[-3:])
    some = [passkey.Question(q + a, 3, 0) for q, a in zip(questions, answers)]
    wrong = [passkey.Question(q + a[:2] + [(a[2] + 1) % 61], 3, 0) for q, a in zip(questions, answers)]
    case = passkey.Case(ids, 10, some + wrong)
    copied = copy.deepcopy(model)
    assert passkey.recall(copied, case, config, kv_dtype=torch.float32) == [True] * 3 + [False] * 3


def test_table_of_recalled_keys():
    records = [dict(document=d, setting=s, recalled=r, depths=[700, 400, 300, 100])
               for d, s, r in [(0, "full", [1, 1, 1, 1]), (1, "full", [1, 1, 0, 1]), (0, "x", [0, 1, 0, 1]), (1, "x", [0, 0, 0, 1])]]
    lines = passkey_table(records, ["full", "x"], "full").splitlines()
    assert lines[2].split()[:3] == ["full", "8", "87.5"]
    assert lines[3].split()[:3] == ["x", "8", "37.5"] and "-50.0" in lines[3]
    assert lines[3].split()[-6:] == ["100.0", "%", "25.0", "%", "0.0", "%"]


@pytest.mark.parametrize("guard", GUARDS)
@torch.inference_mode()
def test_guards_keep_what_they_say(guard, model, ids):
    config = GuardedConfig(**dataclasses.asdict(config_of("zipage", recency=0.25)), guard=guard, share=0.34)
    stream = Stream(copy.deepcopy(model), config, 9, len(ids), kv_dtype=torch.float32)
    plain = Stream(copy.deepcopy(model), config_of("zipage", recency=0.25), 9, len(ids), kv_dtype=torch.float32)
    for one in (stream, plain):
        for _ in one.chunks(ids[:57], 5):  # two compressions
            pass
    assert stream.state.count == plain.state.count == 1 and stream.rows.length == plain.rows.length
    guarded, bare = ([sorted(one.compressor.buffers.positions[0, 10:34, head].tolist()) for head in range(2)] for one in (stream, plain))
    assert guarded != bare
    if guard == "values":
        norms = first_layer_values(model, ids[:45]).norm(dim=-1)[9:]
        for head in range(2):
            assert set((9 + norms[:, head].topk(9).indices).tolist()) <= set(guarded[head])
    if guard == "regions":
        for head in range(2):
            assert all(any(9 + 36 * n // 8 <= p < 9 + 36 * (n + 1) // 8 + 1 for p in guarded[head]) for n in range(8))
