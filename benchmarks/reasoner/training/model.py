"""Qwen3 with HF parameter names in a plain dict: fp32 master weights, bf16 compute, static-cache generation."""
import math
import time

import torch
import torch.nn.functional as F

from benchmarks.reasoner import tasks
from benchmarks.reasoner.training.attention import KVD, attend, hide_mask, sdpa
from benchmarks.reasoner.training.documents import BOS, EOS, MAXPOS, PAD


EPS = 1e-6


def rms(x, w):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
    return y.to(x.dtype) * w.to(x.dtype)


def lin(x, w):
    return F.linear(x, w.to(x.dtype))


def rope(x, cos, sin):                       # x [..., H, D], cos/sin [..., 1, D/2] fp32
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def pre_fn(h, n1, wq, wk, wv, qn, kn, cos, sin):
    D = qn.shape[0]
    x = rms(h, n1)
    q = rms(lin(x, wq).unflatten(-1, (-1, D)), qn)
    k = rms(lin(x, wk).unflatten(-1, (-1, D)), kn)
    v = lin(x, wv).unflatten(-1, (-1, D))
    return rope(q, cos, sin), rope(k, cos, sin), v


def post_fn(h, a, wo, n2, wg, wu, wd):
    h = h + lin(a, wo)
    x = rms(h, n2)
    return h + lin(F.silu(lin(x, wg)) * lin(x, wu), wd)


def loss_fn(h, nf, wh, y):
    logits = lin(rms(h, nf), wh).float()
    return F.cross_entropy(logits, y, ignore_index=-1, reduction="sum")


class Cfg:
    def __init__(self, a):
        self.vocab = (len(tasks.VOCAB) + 63) // 64 * 64
        self.d, self.layers, self.heads, self.kv, self.hd, self.ff = a.d, a.layers, a.heads, a.kv, a.head_dim, a.ff
        self.theta, self.tie = a.theta, bool(a.tie)

    def hf(self):
        return dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=self.vocab, hidden_size=self.d,
                    intermediate_size=self.ff, num_hidden_layers=self.layers, num_attention_heads=self.heads,
                    num_key_value_heads=self.kv, head_dim=self.hd, hidden_act="silu", max_position_embeddings=MAXPOS,
                    initializer_range=0.02, rms_norm_eps=EPS, use_cache=True, tie_word_embeddings=self.tie,
                    rope_theta=float(self.theta), rope_scaling=None,
                    rope_parameters={"rope_theta": float(self.theta), "rope_type": "default"},
                    attention_bias=False, attention_dropout=0.0, use_sliding_window=False, sliding_window=None,
                    max_window_layers=self.layers, layer_types=["full_attention"] * self.layers, bos_token_id=BOS,
                    eos_token_id=EOS, pad_token_id=PAD, torch_dtype="bfloat16", dtype="bfloat16")


LAYER = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_norm",
         "self_attn.k_norm", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


class Model:
    """Plain dict of parameters with HF names."""
    def __init__(self, c, device, qk_init=1.5, seed=0):
        self.c, self.device = c, device
        g = torch.Generator().manual_seed(seed)
        d, D = c.d, c.hd
        def mat(o, i, s):
            return torch.randn(o, i, generator=g) * s
        p = {"model.embed_tokens.weight": mat(c.vocab, d, 0.02 if c.tie else 0.5)}
        res = 1 / math.sqrt(2 * c.layers)
        for l in range(c.layers):
            b = f"model.layers.{l}."
            sh = {"input_layernorm": torch.ones(d), "post_attention_layernorm": torch.ones(d),
                  "self_attn.q_norm": torch.full((D,), qk_init), "self_attn.k_norm": torch.full((D,), qk_init),
                  "self_attn.q_proj": mat(c.heads * D, d, d ** -0.5), "self_attn.k_proj": mat(c.kv * D, d, d ** -0.5),
                  "self_attn.v_proj": mat(c.kv * D, d, d ** -0.5), "self_attn.o_proj": mat(d, c.heads * D, res * (c.heads * D) ** -0.5),
                  "mlp.gate_proj": mat(c.ff, d, d ** -0.5), "mlp.up_proj": mat(c.ff, d, d ** -0.5),
                  "mlp.down_proj": mat(d, c.ff, res * c.ff ** -0.5)}
            for n in LAYER:
                p[b + n + ".weight"] = sh[n]
        p["model.norm.weight"] = torch.ones(d)
        if not c.tie:
            p["lm_head.weight"] = mat(c.vocab, d, 0.02)
        self.p = {k: v.to(device).requires_grad_() for k, v in p.items()}
        self.inv = 1.0 / (c.theta ** (torch.arange(0, D, 2, dtype=torch.float32, device=device) / D))
        self.pre, self.post, self.lossf = pre_fn, post_fn, loss_fn

    def lp(self, P, l):
        return [P[f"model.layers.{l}.{n}.weight"] for n in LAYER]

    def head(self, P):
        return P["model.embed_tokens.weight"] if self.c.tie else P["lm_head.weight"]

    def cs(self, pos):
        f = pos.float()[..., None] * self.inv
        return f.cos().unsqueeze(-2), f.sin().unsqueeze(-2)

    def hidden(self, P, x, pos, segs, G, dtype, fast=True, ev=None, mk=None):
        """ev [T]: query index from which each token is hidden (KV dropout), used in the segments with mk[i]"""
        masks = None
        if KVD["mode"] and ev is not None and any(mk):
            masks = [hide_mask(ev[i * G:i * G + B * L].view(B, L), dtype) if mk[i] else None for i, (B, L) in enumerate(segs)]
        pre, post = (self.pre, self.post) if fast else (pre_fn, post_fn)
        h = F.embedding(x, P["model.embed_tokens.weight"]).to(dtype)
        cos, sin = self.cs(pos)
        for l in range(self.c.layers):
            n1, wq, wk, wv, qn, kn, wo, n2, wg, wu, wd = self.lp(P, l)
            q, k, v = pre(h, n1, wq, wk, wv, qn, kn, cos, sin)
            h = post(h, attend(q, k, v, segs, G, masks), wo, n2, wg, wu, wd)
        return h

    def loss(self, P, x, y, pos, segs, G, dtype, fast=True, ev=None, mk=None):
        h = self.hidden(P, x, pos, segs, G, dtype, fast, ev, mk)
        return (self.lossf if fast else loss_fn)(h, P["model.norm.weight"], self.head(P), y)

    # ------------------------------------------------------- static-cache batched generation
    @torch.no_grad()
    def generate(self, P, prompts, max_new, temperature=0.0, dtype=None, deadline=None, seed=0):
        """prompts: list of id lists. Full static KV cache, ragged rows. -> list of generated id lists."""
        dev, c, B = self.device, self.c, len(prompts)
        dtype = dtype or (torch.bfloat16 if dev != "cpu" else torch.float32)
        P = {k: v.detach().to(dtype) for k, v in P.items()}
        gen = torch.Generator(device=dev).manual_seed(seed)
        self.cut = False                     # True: stopped by the deadline, unfinished rows count as wrong
        lens = torch.tensor([len(p) for p in prompts], device=dev)
        pm = int(lens.max())
        S = (pm + max_new + 255) // 256 * 256
        x = torch.full((B, pm), PAD, device=dev)
        for i, p in enumerate(prompts):
            x[i, :len(p)] = torch.tensor(p, device=dev)
        K = torch.zeros(c.layers, B, c.kv, S, c.hd, device=dev, dtype=dtype)
        V = torch.zeros_like(K)
        ar, g = torch.arange(B, device=dev), c.heads // c.kv
        # prefill
        h = F.embedding(x, P["model.embed_tokens.weight"])
        cos, sin = self.cs(torch.arange(pm, device=dev).expand(B, pm))
        for l in range(c.layers):
            n1, wq, wk, wv, qn, kn, wo, n2, wg, wu, wd = self.lp(P, l)
            q, k, v = (t.transpose(1, 2) for t in pre_fn(h, n1, wq, wk, wv, qn, kn, cos, sin))
            K[l, :, :, :pm], V[l, :, :, :pm] = k, v
            h = post_fn(h, sdpa(q, k, v).transpose(1, 2).flatten(2), wo, n2, wg, wu, wd)
        h = h[ar, lens - 1]
        pos, done = lens.clone(), torch.zeros(B, dtype=torch.bool, device=dev)
        lps = [self.lp(P, l) for l in range(c.layers)]
        out = torch.full((B, max_new), PAD, device=dev)
        keys = torch.arange(S, device=dev)
        for t in range(max_new):
            logits = lin(rms(h, P["model.norm.weight"]), self.head(P)).float()[:, :len(tasks.VOCAB)]
            if temperature > 0:
                nx = torch.multinomial((logits / temperature).softmax(-1), 1, generator=gen)[:, 0]
            else:
                nx = logits.argmax(-1)
            nx = torch.where(done, PAD, nx)
            out[:, t] = nx
            done = done | (nx == EOS)
            if t % 32 == 31:
                self.cut = bool(deadline and time.time() > deadline) and not bool(done.all())
                if self.cut or bool(done.all()):
                    break
            if t == max_new - 1:
                break
            cos, sin = self.cs(pos)
            E = min(S, (pm + t) // 256 * 256 + 256)
            mask = (keys[None, :E] <= pos[:, None])[:, None, None]
            h = F.embedding(nx, P["model.embed_tokens.weight"])
            for l in range(c.layers):
                n1, wq, wk, wv, qn, kn, wo, n2, wg, wu, wd = lps[l]
                q, k, v = pre_fn(h, n1, wq, wk, wv, qn, kn, cos, sin)
                K[l][ar, :, pos], V[l][ar, :, pos] = k, v
                a = F.scaled_dot_product_attention(q.view(B, c.kv, g, c.hd), K[l, :, :, :E], V[l, :, :, :E], attn_mask=mask)
                h = post_fn(h, a.reshape(B, -1), wo, n2, wg, wu, wd)
            pos = pos + 1
        res = []
        for r in out.tolist():
            res.append(r[:r.index(EOS) + 1] if EOS in r else r)
        return res


def detok(ids):
    return " ".join(tasks.VOCAB[i] for i in ids if 0 <= i < len(tasks.VOCAB))
