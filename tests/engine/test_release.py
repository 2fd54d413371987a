"""What only some SGLang releases have."""

import httpx
import pytest
from test_oracle import check_against_oracle, oracle_model  # noqa: F401 (fixture)
from test_server import zipage
from zipage_patches import contract

since_0_5_23 = pytest.mark.skipif(contract.release() == "0.5.17", reason="SGLang 0.5.17 does not have it")


@since_0_5_23
def test_passes_without_admission_and_the_tree_in_python(oracle_model, tmp_path, monkeypatch):  # noqa: F811
    """For 40 passes after a prefill the scheduler does not ask for another one, while rows reach their trigger."""
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    check_against_oracle(
        oracle_model, tmp_path, dict(policy="attention", prefix="compress", budget=64),
        dict(page_size=4, chunked_prefill_size=64, prefill_decode_interval=40), retract=31, copies=True)
    (log,) = tmp_path.glob("log.txt")
    assert "Tree Core: UnifiedTreeCore" in log.read_text()


@since_0_5_23
@pytest.mark.xdist_group("server")
def test_beam_request_is_answered_with_the_reason(url):
    before = zipage(url)
    body = {"input_ids": list(range(8, 40)), "sampling_params": {"beam_width": 2, "max_new_tokens": 8}}
    reply = httpx.post(f"{url}/generate", json=body, timeout=60)
    assert reply.status_code == 400 and "--enable-zipage does not support beam_width" in reply.text
    good = httpx.post(f"{url}/generate", json={**body, "sampling_params": {"max_new_tokens": 8}}, timeout=60)
    assert good.status_code == 200 and zipage(url)["running"] == before["running"] == 0
