"""A mixture of experts with GQA: the reasoner with each of its MLPs copied into eight experts and a random router, two experts a
token, weights normalised.  SGLang routes and mixes, the sum is the MLP again, so the oracle of the dense model applies."""

import json

import pytest
import torch
from harness import MODEL, request, run_engine
from oracle import decode
from safetensors.torch import load_file, save_file
from test_oracle import compare_kept, oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=96, block=32, window=8, policy="zipage")
EXPERTS = 8


def make_moe(folder):
    config = json.loads((MODEL / "config.json").read_text())
    weights = {}
    for file in sorted(MODEL.glob("*.safetensors")):
        weights |= {name: tensor.float() for name, tensor in load_file(file).items()}
    generator = torch.Generator().manual_seed(0)
    for layer in range(config["num_hidden_layers"]):
        mlp = f"model.layers.{layer}.mlp"
        weights[f"{mlp}.gate.weight"] = torch.randn(EXPERTS, config["hidden_size"], generator=generator)
        for part in ("gate_proj", "up_proj", "down_proj"):
            dense = weights.pop(f"{mlp}.{part}.weight")
            weights |= {f"{mlp}.experts.{e}.{part}.weight": dense.clone() for e in range(EXPERTS)}
    config |= dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=EXPERTS, num_experts_per_tok=2,
                   moe_intermediate_size=config["intermediate_size"], norm_topk_prob=True, decoder_sparse_step=1,
                   mlp_only_layers=[])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.full
def test_mixture_of_experts(oracle_model, tmp_path):  # noqa: F811
    rounds = [[request(f"r{n}-{i}", p, 170) for i, p in enumerate(prompts()[:4])] for n in range(2)]
    run = run_engine(tmp_path / "run", rounds, enable_zipage=True, page_size=4, model_path=str(make_moe(tmp_path / "moe")),
                     **{f"zipage_{k}": v for k, v in METHOD.items()})
    for i, p in enumerate(prompts()[:4]):
        want = decode.generate(oracle_model, p, 170, decode.OracleConfig(**METHOD), ignore_eos=True)
        for n in range(2):
            assert run.ids(n)[i] == want.tokens, (n, i)
            compare_kept(want.compressions, run.kept[f"r{n}-{i}"], wasted=1)
    assert run.info["compressions"] >= 16 and run.flushed
