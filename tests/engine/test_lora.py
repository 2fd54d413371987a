"""A LoRA adapter beside the bare model, both being compressed: tokens and kept sets of an oracle with the adapter merged in."""

import json
import shutil

import pytest
import torch
from harness import MODEL, request, run_engine
from oracle import decode, model
from safetensors.torch import load_file, save_file
from test_oracle import compare_kept, prompts

METHOD = dict(budget=64, block=32, window=8, policy="zipage", prefix="compress")
RANK, ALPHA, STRENGTH = 4, 8, 0.3
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(folder):
    """(adapter folder in PEFT's format, model folder with the same change in its weights).  Random, and strong enough to
    change every answer."""
    adapter, merged, generator = folder / "adapter", folder / "merged", torch.Generator().manual_seed(0)
    for f in (adapter, merged):
        f.mkdir()
    weights = {}
    for file in sorted(MODEL.glob("*.safetensors")):
        weights |= {name: tensor.float() for name, tensor in load_file(file).items()}
    tensors = {}
    for name, weight in weights.items():
        if not name.removesuffix(".weight").endswith(MODULES):
            continue
        a = torch.randn(RANK, weight.shape[1], generator=generator)
        b = torch.randn(weight.shape[0], RANK, generator=generator)
        b *= STRENGTH * weight.norm() / (b @ a).norm() * RANK / ALPHA
        weights[name] = weight + ALPHA / RANK * b @ a
        stem = "base_model.model." + name.removesuffix(".weight")
        tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", r=RANK, lora_alpha=ALPHA, target_modules=MODULES, bias="none", task_type="CAUSAL_LM")))
    save_file(weights, merged / "model.safetensors")
    shutil.copy(MODEL / "config.json", merged)
    return adapter, merged


@pytest.mark.full
def test_adapter_equals_merged_weights(tmp_path):
    adapter, merged = make_adapter(tmp_path)
    oracles = {None: model.Qwen3(MODEL), "random": model.Qwen3(merged)}
    # The same prompts with and without the adapter, at once and again: the prefix cache must keep the two apart.
    rounds = [[request(f"r{n}-{i}-{name}", p, 150) | {"lora": name} for i, p in enumerate(prompts()[:3]) for name in oracles]
              for n in range(2)]
    flags = {f"zipage_{k}": v for k, v in METHOD.items()}
    run = run_engine(tmp_path / "run", rounds, env=dict(ZIPAGE_UNPINNED=1), enable_zipage=True, page_size=4, enable_lora=True,
                     lora_backend="torch_native", lora_paths=[f"random={adapter}"], max_loras_per_batch=2, **flags)
    for n, r in enumerate(rounds[0]):
        want = decode.generate(oracles[r["lora"]], r["input_ids"], 150, decode.OracleConfig(**METHOD), ignore_eos=True)
        assert len(want.compressions) >= 3
        for round_, again in zip(rounds, run.rounds):
            assert again[n]["ids"] == want.tokens, round_[n]["rid"]
            compare_kept(want.compressions, run.kept[round_[n]["rid"]], wasted=1)
    bare, adapted = run.ids(0)[::2], run.ids(0)[1::2]
    assert all(a != b for a, b in zip(bare, adapted)), "an adapter without effect shows nothing"
    assert run.info["copied_out_slots"] > 0 and run.flushed
    assert all(o["cached"] > 0 for o in run.rounds[1])


@pytest.mark.full
def test_adapters_of_parked_requests_keep_their_place(tmp_path):
    """Room for two adapters, the bare model being one: while the only request of one of them waits for a query slot, a third must
    not be let in."""
    adapter, merged = make_adapter(tmp_path)
    oracles = {None: model.Qwen3(MODEL), "a": model.Qwen3(merged), "b": model.Qwen3(merged)}
    names = [None, None, None, "a", "b"]
    requests = [request(f"r{i}-{name}", prompts()[0], 150) | {"lora": name} for i, name in enumerate(names)]
    method = METHOD | dict(passes=1)  # a slot near a compression only
    flags = {f"zipage_{k}": v for k, v in method.items()}
    run = run_engine(tmp_path / "run", [requests], env=dict(ZIPAGE_UNPINNED=1), enable_zipage=True, enable_lora=True,
                     lora_backend="torch_native", lora_paths=[f"a={adapter}", f"b={adapter}"], max_loras_per_batch=2,
                     zipage_query_slots=1, **flags)
    for got, r in zip(run.rounds[0], requests):
        want = decode.generate(oracles[r["lora"]], r["input_ids"], 150, decode.OracleConfig(**method), ignore_eos=True)
        assert got["ids"] == want.tokens, r["rid"]
    assert run.info["parked"] > 3 and run.flushed
