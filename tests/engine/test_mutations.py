"""The checks can fail: each way of breaking the package on purpose is noticed by an invariant or by the oracle."""

import pytest
from harness import EngineFailed
from test_oracle import SETTINGS, check_against_oracle, oracle_model  # noqa: F401 (fixture)

# mutation -> (setting it shows in, what notices it: words of the failed check, or None for a differing output)
EXPECTED = {
    "position_off_by_one": ("zipage", "position is not the true one|true length"),
    "leak_page": ("recent-noradix", "without exactly one owner"),
    "skip_compaction": ("recent-noradix", None),
    "stale_seq_lens_cpu": ("zipage", "copies of kv_len disagree"),
    "write_into_tree": ("random-retract", "tree-owned slot|without exactly one owner|the tree owns"),
    "forget_query_slot": ("zipage", "query slot leaked"),
    "insert_compressed_rows": ("zipage", None),
    "last_window_only": ("windows-compress", None),
}
# One engine each, so CI runs one.
QUICK = ("position_off_by_one",)


@pytest.mark.once
@pytest.mark.parametrize("mutation", [m if m in QUICK else pytest.param(m, marks=pytest.mark.full) for m in EXPECTED])
def test_mutation_is_noticed(mutation, oracle_model, tmp_path, monkeypatch):  # noqa: F811
    setting, words = EXPECTED[mutation]
    monkeypatch.setenv("ZIPAGE_MUTATION", mutation)
    if words is None:
        with pytest.raises(AssertionError):
            check_against_oracle(oracle_model, tmp_path, **SETTINGS[setting])
    else:
        with pytest.raises(EngineFailed, match=words):
            check_against_oracle(oracle_model, tmp_path, **SETTINGS[setting])
