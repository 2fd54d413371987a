import naive
import pytest
import torch
from kernel_cases import MIXED, Request, make_case

from zipage_kernels import ops


def naive_attention(case, r, layer, head, scale):
    request, group = case.requests[r], case.query_cache.shape[2] // case.k_buffers[0].shape[1]
    keys = case.k_buffers[layer][case.batch.rows[r, : request.kv_len], head].tolist()
    queries = case.query_cache[layer, case.batch.query_rows[r]]
    group_queries = [queries[:, head * group + g].tolist() for g in range(group)]
    return naive.window_attention(keys, group_queries, scale, request.start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads, group, window, strided", [(2, 3, 3, False), (1, 1, 1, True), (3, 2, 5, True)])
def test_matches_the_formula(dtype, heads, group, window, strided):
    case = make_case(heads=heads, group=group, window=window, dtype=dtype, strided=strided)
    scores = ops.attention_score(case.k_buffers, case.query_cache, case.batch, scale=0.7)
    assert scores.dtype == torch.float32 and scores.shape == (4, 2, heads, 30)
    again = ops.attention_score(case.k_buffers, case.query_cache, case.batch, scale=0.7, log_sums=case.log_sums(0.7))
    torch.testing.assert_close(again, scores, rtol=2e-5, atol=1e-7)
    for r, n in enumerate(case.batch.num_candidates):
        assert (scores[r, :, :, n:] == -torch.inf).all()
        for layer in range(2):
            for head in range(heads):
                expected = torch.tensor(naive_attention(case, r, layer, head, 0.7))
                torch.testing.assert_close(scores[r, layer, head, :n], expected, rtol=2e-5, atol=1e-7)


def test_window_is_causal_and_the_mean_divides_by_the_window():
    """Equal keys: query i of w = 2 spreads 1 evenly over what it sees, so the last row gets 1/4 from one query of two."""
    case = make_case([Request(kv_len=4, keep=2)], layers=1, heads=1, group=1, window=2)
    case.k_buffers[0][case.batch.rows[0, :4]] = 1.0
    scores = ops.attention_score(case.k_buffers, case.query_cache, case.batch, scale=1.0)
    torch.testing.assert_close(scores[0, 0, 0], torch.tensor([7 / 24, 7 / 24, 7 / 24, 1 / 8]))


def test_prefix_takes_its_share_of_the_softmax():
    """A kept prefix that draws all attention leaves nothing to the candidates."""
    case = make_case([Request(kv_len=9, start=4, keep=3)], layers=1, heads=1, group=1)
    case.query_cache[0, case.batch.query_rows[0]] = 1.0
    case.k_buffers[0][case.batch.rows[0, :9]] = 0.0
    case.k_buffers[0][case.batch.rows[0, 2]] = 10.0
    scores = ops.attention_score(case.k_buffers, case.query_cache, case.batch, scale=1.0)
    assert scores.max() < 1e-15


def test_large_logits_do_not_overflow():
    case = make_case([Request(kv_len=9, keep=3)], dtype=torch.float16)
    case.query_cache *= 100
    scores = ops.attention_score(case.k_buffers, case.query_cache, case.batch, scale=100.0)
    assert scores.isfinite().all() and scores.amax() <= 1.0


def test_requests_do_not_affect_each_other():
    together = make_case(MIXED)
    scores = ops.attention_score(together.k_buffers, together.query_cache, together.batch, scale=0.5)
    together.k_buffers[0][together.batch.rows[0, :23]] = torch.nan
    poisoned = ops.attention_score(together.k_buffers, together.query_cache, together.batch, scale=0.5)
    assert poisoned[0, 0].isnan().any()
    assert torch.equal(scores[1:], poisoned[1:])


def test_store_query_writes_named_rows_only():
    cache = torch.full((9, 4, 5), 7.0, dtype=torch.bfloat16)
    q = torch.randn(5, 4, 5)
    ops.store_query(q, torch.tensor([3, 0, 8, 0, 1]), cache)
    for row, source in ((3, 0), (8, 2), (1, 4)):
        assert torch.equal(cache[row], q[source].bfloat16())
    assert (cache[[2, 4, 5, 6, 7]] == 7.0).all()
