"""Every refused flag and kind of model is refused at start, in words that name it and what to do instead."""

import inspect
import json
import types

import pytest
from test_flags import plugins  # noqa: F401 (fixture)
from zipage_patches import refusals

ACCEPTED = {field: accepted[0] for field, accepted, _ in refusals.FLAGS + refusals.LATER_FLAGS}
WRONG = {False: True, None: "something", 1: 2, "null": "prefill", "none": "raise", "auto": "fp8_e5m2"}


def test_accepted_flags_pass():
    refusals.check_flags(types.SimpleNamespace(**ACCEPTED))


@pytest.mark.parametrize("field", ACCEPTED)
def test_flag_is_refused(field):
    wrong = next(v for k, v in WRONG.items() if k is ACCEPTED[field] or (k == ACCEPTED[field] and type(k) is type(ACCEPTED[field])))
    with pytest.raises(refusals.Unsupported) as refused:
        refusals.check_flags(types.SimpleNamespace(**{**ACCEPTED, field: wrong}))
    flag = "--" + field.replace("_", "-")
    assert flag in str(refused.value) and f"Drop {flag} or --enable-zipage." in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", ACCEPTED)
def test_refused_flag_exists_in_this_sglang(field):
    from sglang.srt.server_args import ServerArgs
    from zipage_patches import contract

    if field in {name for name, _, _ in refusals.LATER_FLAGS} and contract.release() == "0.5.17":
        pytest.skip("0.5.17 does not have it")
    assert field in ServerArgs.__annotations__ or field in inspect.signature(ServerArgs).parameters, (
        "a flag that was renamed would be let through")


@pytest.mark.parametrize("name", [name for name, _ in refusals.ENVIRONMENT])
def test_environment_is_refused(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    with pytest.raises(refusals.Unsupported, match=f"{name}=1.*Unset {name}"):
        refusals.check_flags(types.SimpleNamespace(**ACCEPTED))


DENSE = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, vocab_size=384, max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1e4)
MODELS = {
    "MLA": (dict(DENSE, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", kv_lora_rank=32, q_lora_rank=None,
                 qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2,
                 first_k_dense_replace=2), "MLA attention"),
    "hybrid sliding window": (dict(DENSE, architectures=["GptOssForCausalLM"], model_type="gpt_oss", sliding_window=128,
                                   num_local_experts=4, num_experts_per_tok=2,
                                   layer_types=["sliding_attention", "full_attention"]), "hybrid sliding-window"),
    "hybrid SSM": (dict(DENSE, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", num_experts=4,
                        num_experts_per_tok=2), "hybrid SSM"),
}


def write(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize("kind", MODELS)
def test_model_is_refused(kind, tmp_path, plugins):  # noqa: F811
    from sglang.srt.configs.model_config import ModelConfig

    config, words = MODELS[kind]
    with pytest.raises(refusals.Unsupported, match=words):
        refusals.check_model(ModelConfig(write(tmp_path, config)))


def test_plain_models_pass(tmp_path, plugins):  # noqa: F811
    from sglang.srt.configs.model_config import ModelConfig

    for arch, kind in (("Qwen3ForCausalLM", "qwen3"), ("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2")):
        refusals.check_model(ModelConfig(write(tmp_path, dict(DENSE, architectures=[arch], model_type=kind))))
