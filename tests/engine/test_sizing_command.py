"""`python -m zipage_sglang plan`: SGLang's own reading of models and flags, refusals, and what running servers say of themselves."""

import dataclasses
import json
import re

import pytest
from harness import MODEL, run_engine
from test_flags import plugins  # noqa: F401 (fixture)
from test_refusals import DENSE, MODELS, write
from zipage_patches import refusals, sizing

from benchmarks.shapes import SHAPES, model_folder
from zipage_sglang.cli import main
from zipage_sglang.sizing.planner import make_plan
from zipage_sglang.sizing.speed import Weights

LINE = re.compile(r"zipage on: .* at most its prompt and (\d+) private tokens: about (\d+) fit the pool of (\d+) tokens at any length, "
                  r"without compression (\d+) that grow to the context length of (\d+); .* take ([\d.]+) MiB, ([\d.]+) %")


def agree(plan, log):
    """The plan is what the server wrote when it started, within 5 %."""
    bound, bounded, pool, unbounded, context, mib, percent = map(float, LINE.search(log).groups())
    assert (plan.fits.bound, plan.setting.context_len) == (bound, context)
    assert plan.pool == pytest.approx(pool, rel=0.05)
    assert (plan.fits.bounded, plan.fits.unbounded) == pytest.approx((bounded, unbounded), rel=0.05, abs=1)
    assert plan.overhead.total / 2**20 == pytest.approx(mib, rel=0.05)
    assert 100 * plan.overhead.share == pytest.approx(percent, rel=0.05, abs=0.05)


@pytest.mark.xdist_group("server")
def test_agrees_with_a_server_whose_pool_is_given(server):
    flags = server.flags[server.flags.index("--device"):]
    plan = make_plan(sizing.setting_of(str(MODEL), 8, flags))
    agree(plan, server.log())
    assert plan.pool == int(LINE.search(server.log())[3])


@pytest.mark.full
@pytest.mark.xdist_group("server")
def test_agrees_with_an_engine_whose_pool_is_sized_from_memory(tmp_path):
    run_engine(tmp_path, [], max_total_tokens=None, mem_fraction_static=0.5, enable_zipage=True, zipage_budget=256, zipage_block=64,
               page_size=16, env={"ZIPAGE_CHECK_INVARIANTS": 0})
    log = (tmp_path / "log.txt").read_text()
    begin = float(re.search(r"Load weight begin. avail mem=([\d.]+)", log)[1])
    end = float(re.search(r"Load weight end.*avail mem=([\d.]+)", log)[1])
    setting = sizing.setting_of(str(MODEL), begin, ["--device", "cpu", "--dtype", "float32", "--mem-fraction-static", "0.5", "--page-size", "16",
                                                    "--zipage-budget", "256", "--zipage-block", "64"])
    assert setting.weights.total == pytest.approx(9.64e6 * 4, rel=0.01)
    # The machine's free memory is everybody's: take what was gone after loading, not the weights alone.
    agree(make_plan(dataclasses.replace(setting, weights=Weights(0, 0, int((begin - end) * 2**30)))), log)


@pytest.mark.parametrize("name, parameters, embedding", [("qwen3-0.6b", 596_049_920, 0), ("qwen3-8b", 8_190_735_360, 151936 * 4096)])
def test_known_shapes(name, parameters, embedding, tmp_path):
    setting = sizing.setting_of(str(model_folder(name, tmp_path)), 140.4, [])
    assert (setting.weights.total, setting.weights.embedding) == (2 * parameters, 2 * embedding)
    assert setting.kv_bytes == 2 * 2 * 128 * 8 * SHAPES[name]["num_hidden_layers"]
    assert 0.85 < setting.fraction < 0.95 and setting.graph_batch == 256  # SGLang's choices for this GPU, with none in sight


def test_flags_of_the_server_count(tmp_path):
    folder = str(model_folder("qwen3-8b", tmp_path))
    setting = sizing.setting_of(folder, 80, ["--tp", "4", "--page-size", "64", "--mem-fraction-static", "0.8", "--max-total-tokens", "9999",
                                             "--max-running-requests", "32", "--context-length", "8192", "--zipage-block", "128"])
    assert (setting.tp, setting.page, setting.fraction, setting.max_tokens, setting.max_running, setting.context_len) == (
        4, 64, 0.8, 9999, 32, 8192)
    assert (setting.shape.q_heads, setting.shape.kv_heads, setting.config.block) == (8, 2, 128)


def test_mixture_of_experts(tmp_path):
    config = dict(DENSE, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=8, num_experts_per_tok=2,
                  moe_intermediate_size=32, torch_dtype="bfloat16", decoder_sparse_step=1, mlp_only_layers=[])
    weights = sizing.setting_of(write(tmp_path, config), 24, ["--zipage-budget", "512"]).weights
    assert (weights.chosen, weights.of) == (2, 8)
    assert weights.experts == 2 * 8 * 3 * 64 * 32 * 2


def test_quantised_weights(tmp_path):
    dense = dict(SHAPES["qwen3-0.6b"], num_hidden_layers=2)
    plain = sizing.setting_of(write(tmp_path, dense), 24, []).weights
    fp8 = dict(dense, quantization_config=dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128]))
    (tmp_path / "fp8").mkdir()
    quantised = sizing.setting_of(write(tmp_path / "fp8", fp8), 24, []).weights
    embedding = 2 * 151936 * 1024
    assert quantised.total == pytest.approx(embedding + (plain.total - embedding) / 2, rel=0.001)


@pytest.mark.parametrize("kind", MODELS)
def test_models_are_refused_in_the_servers_words(kind, tmp_path, capsys):
    from sglang.srt.configs.model_config import ModelConfig

    config, _ = MODELS[kind]
    with pytest.raises(refusals.Unsupported) as refused:
        refusals.check_model(ModelConfig(write(tmp_path, config)))
    assert main(["plan", "--model-path", str(tmp_path), "--gpu", "H200"]) == 1
    assert capsys.readouterr().err.strip().endswith(f"error: {refused.value}")


@pytest.mark.parametrize("extra, words", [
    (dict(attn_logit_softcapping=50.0), "layer 0 is not plain causal attention"),
    (dict(layer_types=["full_attention", "sliding_attention"]), "layer 1 has a sliding window"),
])
def test_layers_are_refused_in_the_servers_words(extra, words):
    import types

    with pytest.raises(refusals.Unsupported, match=f"does not support Gemma2ForCausalLM: {words}"):
        sizing.check_layers(types.SimpleNamespace(**extra), "Gemma2ForCausalLM")
    source = (MODEL.parents[2] / "patches" / "refusals.py").read_text()
    assert words.replace("layer 0", "layer {m.layer_id}").replace("layer 1", "layer {m.layer_id}") in source


@pytest.mark.parametrize("flags, words", [
    (["--model-path", "{folder}"], "--gpu-memory: say how many GiB"),
    (["--model-path", "{folder}", "--gpu", "H200", "--budget", "8"], "--zipage-budget: 8 cannot hold"),
    (["--model-path", "{folder}", "--gpu", "H200", "--kv-cache-dtype", "fp8_e4m3"], "--kv-cache-dtype fp8_e4m3"),
    (["--model-path", "{folder}/nothing", "--gpu", "H200"], "Give the path of its config.json"),
    (["--model-path", "{folder}", "--gpu", "H200", "--prompt-tokens", "-1"], "must not be negative"),
])
def test_wrong_requests_are_one_line(flags, words, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        status = main(["plan", *(f.format(folder=MODEL) for f in flags)])
    except SystemExit as stop:
        status = stop.code
        assert words in str(status)
    else:
        assert words in capsys.readouterr().err
    assert status


def test_json_of_a_config_file(capsys):
    assert main(["plan", "--model-path", str(MODEL / "config.json"), "--gpu-memory", "16", "--json", "--output-tokens", "3000"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["setting"]["kv_bytes"] == 5 * 2 * 2 * 128 * 2 and data["zipage"]["step"] is None
