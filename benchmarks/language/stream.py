"""Feeds one document through a Llama-like model from transformers while the plugin's compressor bounds its KV rows.

The model's attention is replaced by one over KV rows as the engine holds them: keys with their rotary positions applied,
at true positions, in buffers of [S, H, D] per layer.  Everything else is transformers' own forward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from benchmarks.language.guards import policy_of
from zipage_kernels import ops
from zipage_sglang.compressor import Compressor, Job
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers
from zipage_sglang.plan import plan_row
from zipage_sglang.state import RequestState

ATTENTION = "kv_rows"


class Rows:
    """The KV rows of one request, L layers of [S, H, D]; row i lies in slot i + 1 (slot 0 is SGLang's padding slot).

    length: rows filled.  evicted: true length - length.  query_cache: [L, n + 1, Hq, D], a ring of the last n = `window` queries
    (position p in row p % n + 1).
    """

    def __init__(self, model_config, capacity: int, window: int, dtype: torch.dtype, device: torch.device):
        c = model_config
        shape = (capacity + 1, c.num_key_value_heads, c.head_dim)
        self.k = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(c.num_hidden_layers)]
        self.v = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(c.num_hidden_layers)]
        queries = (c.num_hidden_layers, window + 1, c.num_attention_heads, c.head_dim)
        self.query_cache = torch.zeros(queries, dtype=dtype, device=device)
        self.window, self.length, self.evicted = window, 0, 0

    def query_row(self, position: int) -> int:
        return position % self.window + 1

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """Appends n tokens and lets them look at all rows before them, and at each other causally.

        query: [Hq, n, D] after RoPE.  key, value: [H, n, D].  Returns [1, n, Hq, D].
        """
        heads, n, dim = query.shape
        end = self.length + n
        new = slice(self.length + 1, end + 1)
        self.k[layer][new], self.v[layer][new] = key.transpose(0, 1), value.transpose(0, 1)
        last = min(n, self.window)
        position = end + self.evicted
        at = torch.tensor([self.query_row(p) for p in range(position - last, position)], device=query.device)
        ops.store_query(query[:, n - last :].transpose(0, 1), at, self.query_cache[layer])
        keys, values = (b[layer][1 : end + 1].to(query.dtype).transpose(0, 1) for b in (self.k, self.v))
        group = heads // keys.shape[0]
        column = torch.arange(end, device=query.device)
        visible = column <= column[self.length :, None]
        out = F.scaled_dot_product_attention(  # the group's heads as further queries of their KV head
            query.reshape(-1, group * n, dim)[None], keys[None], values[None], visible.repeat(group, 1), scale=scale)
        return out.reshape(heads, n, dim).transpose(0, 1)[None]


def _attention(module, query, key, value, attention_mask, scaling: float, rows: Rows, **_):
    return rows.attend(module.layer_idx, query[0], key[0], value[0], scaling), None


AttentionInterface.register(ATTENTION, _attention)


class Stream:
    """One request.  model: a causal LM whose attention is switched to KV rows; it may be on a GPU.  config None: full KV.

    capacity: most tokens fed.  window: queries kept, those that score if not given.  kv_dtype: of keys, values and stored
    queries.  The first `prompt_len` tokens are the prompt.
    """

    def __init__(self, model, config: ZipageConfig | None, prompt_len: int, capacity: int, window: int | None = None,
                 kv_dtype: torch.dtype = torch.bfloat16):
        model.set_attn_implementation(ATTENTION)
        self.model, self.config = model, config
        self.device = model.device
        window = window or (config.scored if config else 16)
        self.rows = Rows(model.config, capacity, window, kv_dtype, self.device)
        if config is None:
            return
        c, rows, policy = model.config, self.rows, policy_of(config)
        table = (c.num_hidden_layers, capacity + 1, c.num_key_value_heads)
        stored = dict(dtype=torch.bfloat16, device=self.device)
        importance = torch.zeros(table, **stored) if policy.stores_importance else None
        positions = torch.zeros(table, dtype=torch.int32, device=self.device)
        seen = torch.zeros(table, **stored) if config.windows > 1 else None
        buffers = KVBuffers(rows.k, rows.v, rows.query_cache, positions, importance, scale=c.head_dim**-0.5, seen=seen)
        row_table = torch.arange(1, capacity + 1, dtype=torch.int32, device=self.device)[None]
        self.compressor = Compressor(buffers, policy, config, row_table)
        self.state = RequestState(config.start(prompt_len), prompt_len, config)

    @property
    def fed(self) -> int:
        """Tokens fed so far: the true position of the next one."""
        return self.rows.length + self.rows.evicted

    def room(self) -> int | None:
        """Tokens that may be fed before the next compression; None: any number."""
        if self.config is None:
            return None
        return self.state.trigger - self.rows.length

    @torch.inference_mode()
    def feed(self, ids: list[int]) -> torch.Tensor:
        """Compresses if that is due, then feeds one chunk; returns the last hidden states, [n, hidden].

        Raises ValueError for a chunk that crosses the next compression.
        """
        if self.room() == 0:
            self._compress()
        room = self.room()
        if room is not None and len(ids) > room:
            raise ValueError(f"a chunk of {len(ids)} tokens crosses the compression that is due after {room}")
        positions = torch.arange(self.fed, self.fed + len(ids), device=self.device)[None]
        ids = torch.tensor([ids], device=self.device)
        out = self.model.model(input_ids=ids, position_ids=positions, use_cache=False, rows=self.rows)
        self.rows.length += ids.shape[1]
        return out.last_hidden_state[0]

    def chunks(self, ids: list[int], size: int):
        """Feeds the rest of a document `ids` in chunks of at most `size`; yields (position of the first, hidden states)."""
        while self.fed < len(ids):
            first, room = self.fed, self.room()
            n = min(size, len(ids) - first, room or size)  # none left: the compression makes room for a block
            n = min(n, self.config.block) if room == 0 else n
            yield first, self.feed(ids[first : first + n])

    def take_prefix(self, full: Stream, length: int, query_cache: torch.Tensor):
        """Starts from the first `length` tokens of a full-KV stream; query_cache: what that stream's was after them."""
        for mine, theirs in zip((*self.rows.k, *self.rows.v), (*full.rows.k, *full.rows.v)):
            mine[1 : length + 1] = theirs[1 : length + 1]
        self.rows.query_cache.copy_(query_cache)
        self.rows.length = length

    def _compress(self):
        rows, state, cfg = self.rows, self.state, self.config
        plan = plan_row(state.start, cfg.budget, rows.length, protected=0, page=1)
        # Later than the engine, which has the queries of one window only; keys do not change meanwhile.
        if state.scored > cfg.window:
            for left in range(cfg.windows - 1, 0, -1):
                kv_len = rows.length - left * cfg.window
                if kv_len - cfg.window < state.start + state.stored:
                    continue  # with a larger budget than before, the block is shorter
                self.compressor.score([self._job(kv_len)._replace(keep=0)])
                state.seen, state.windows = kv_len - state.start, state.windows + 1
        self.compressor.run([self._job(rows.length)])
        state.stored, state.seen, state.windows = cfg.budget, 0, 0
        state.count += 1
        state.evicted += plan.evicted
        rows.evicted, rows.length = state.evicted, plan.kept

    def _job(self, kv_len: int) -> Job:
        """The row's first kv_len tokens, scored by the last w of them."""
        rows, state, true_len = self.rows, self.state, kv_len + self.rows.evicted
        queries = [rows.query_row(p) for p in range(true_len - self.config.window, true_len)]
        return Job(row=0, kv_len=kv_len, start=state.start, evicted=rows.evicted, stored=state.stored, keep=self.config.budget,
                   count=state.count, seen=state.seen, windows=state.windows, query_rows=queries, config=self.config)
