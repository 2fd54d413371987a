"""Plain and masked causal attention, and the probes that choose how each runs on this GPU."""
import math
import time

import torch
import torch.nn.functional as F

from benchmarks.reasoner.training.kvdrop import NEVER, RECENT


ATTN = {"gqa": False, "backends": None}      # set by pick_attention()


def sdpa(q, k, v):                           # [B,H,L,D] causal
    if q.shape[1] != k.shape[1]:
        if ATTN["gqa"]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        r = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


KVD = {"mode": None}                         # how masked attention runs, set by pick_masked(); None: everything plain
NEG = -30000.0                               # instead of -inf: no NaN where a whole block of keys is hidden


def hide_mask(ev, dtype):
    """ev [B,L]: query index from which a key is hidden -> additive mask [B,1,L,L]"""
    i = torch.arange(ev.shape[1], device=ev.device)
    see = (i <= i[:, None]) & (i[:, None] < ev[:, None, :])
    return torch.full(see.shape, NEG, device=ev.device, dtype=dtype).masked_fill_(see, 0.0)[:, None]


def sdpa_masked(q, k, v, mask):              # mask: hide_mask(); causal part included
    r = q.shape[1] // k.shape[1]
    if r > 1:
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
    mask = mask.expand(-1, q.shape[1], -1, -1)
    if KVD["mode"] == "eff+causal":          # bias and causal skipping together: only the raw operator takes both
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, True)[0]
    if KVD["mode"] == "eff":
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, False)[0]
    if q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    from torch.nn.attention import sdpa_kernel, SDPBackend
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):      # an error rather than the math backend
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attend(q, k, v, segs, G, masks=None):    # q [T,H,D], k,v [T,KV,D] -> [T,H*D]; masks: per segment a hide_mask() or None
    outs = []
    for i, (B, L) in enumerate(segs):
        o, n = i * G, B * L
        qkv = (t[o:o + n].unflatten(0, (B, L)).transpose(1, 2) for t in (q, k, v))
        y = sdpa(*qkv) if masks is None or masks[i] is None else sdpa_masked(*qkv, masks[i])
        outs.append(y.transpose(1, 2).reshape(n, -1))
        if n < G:
            outs.append(y.new_zeros(G - n, outs[-1].shape[1]))
    return torch.cat(outs)



# ---- probing
def pick_attention(c, device):
    if device == "cpu":
        ATTN["gqa"] = True
        return
    from torch.nn.attention import sdpa_kernel, SDPBackend as SB
    def mk():
        return [torch.randn(4, h, 2048, c.hd, device=device, dtype=torch.bfloat16, requires_grad=True) for h in (c.heads, c.kv, c.kv)]
    best = None
    for name, gqa, be in (("flash+gqa", True, [SB.FLASH_ATTENTION]), ("flash+expand", False, [SB.FLASH_ATTENTION]),
                          ("auto+expand", False, None)):
        try:
            ATTN.update(gqa=gqa, backends=be)
            q, k, v = mk()
            def run():
                if be:
                    with sdpa_kernel(be):
                        y = sdpa(q, k, v)
                        y.sum().backward()
                else:
                    y = sdpa(q, k, v)
                    y.sum().backward()
                return y
            y = run()
            r = c.heads // c.kv
            with torch.no_grad():
                kk, vv = k[:1].repeat_interleave(r, 1).float(), v[:1].repeat_interleave(r, 1).float()
                s = (q[:1].float() @ kk.transpose(-1, -2)) / math.sqrt(c.hd)
                s = s.masked_fill(torch.ones(2048, 2048, device=device, dtype=torch.bool).triu(1), float("-inf"))
                err = ((s.softmax(-1) @ vv) - y[:1].float()).abs().max().item()
            if not err < 0.05:
                raise RuntimeError(f"wrong result, err {err}")
            for _ in range(3):
                run()
            torch.cuda.synchronize()
            t = time.time()
            for _ in range(10):
                run()
            torch.cuda.synchronize()
            dt = (time.time() - t) / 10
            fl = 3.5 * 4 * 4 * c.heads * 2048 * 2048 / 2 * c.hd
            print(f"[attn] {name}: {dt * 1e3:.2f} ms, {fl / dt / 1e12:.0f} TFLOP/s, err {err:.4f}", flush=True)
            if best is None or dt < best[0] * 0.95:
                best = (dt, name, gqa, be)
        except Exception as e:
            print(f"[attn] {name} failed: {str(e)[:200]}", flush=True)
    if best is None:
        ATTN.update(gqa=False, backends=None)
    else:
        ATTN.update(gqa=best[2], backends=best[3])
        if best[3] and "FLASH" in str(best[3]):       # keep math as a fallback for odd shapes, prefer flash; no cuDNN
            torch.backends.cuda.enable_cudnn_sdp(False)
        print("[attn] using", best[1], flush=True)


def pick_masked(c, device, G):
    """Choose how masked attention runs (result and gradients checked against fp32). -> its time / that of plain attention, None if unusable"""
    if device == "cpu":
        KVD["mode"] = "sdpa"
        return 1.0
    r = c.heads // c.kv
    def mk(B, L):
        t = [torch.randn(B, L, h, c.hd, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for h in (c.heads, c.kv, c.kv)]
        j = torch.arange(L, device=device)
        ev = torch.where(torch.rand(B, L, device=device) < 0.3, NEVER, (j // 128 + 1) * 128 + RECENT + torch.randint(1, 256, (B, L), device=device))
        return t, hide_mask(ev, torch.bfloat16)
    def clock(fn):
        for it in range(7):
            if it == 2:
                torch.cuda.synchronize()
                t = time.time()
            torch.autograd.grad(fn(), qkv, torch.ones_like(qkv[0]))
        torch.cuda.synchronize()
        return (time.time() - t) / 5
    best = None
    for mode in ("eff+causal", "eff", "sdpa"):
        if mode == "sdpa" and best:
            break
        try:
            KVD["mode"] = mode
            qkv, m = mk(2, 1088)
            g = torch.randn_like(qkv[0])
            y = sdpa_masked(*qkv, m)
            got = (y, *torch.autograd.grad(y, qkv, g))
            ref = [t.detach().float().requires_grad_() for t in qkv]
            s = ref[0] @ ref[1].repeat_interleave(r, 1).transpose(-1, -2) / math.sqrt(c.hd)
            y = s.masked_fill(m < -1, float("-inf")).softmax(-1) @ ref[2].repeat_interleave(r, 1)
            want = (y, *torch.autograd.grad(y, ref, g.float()))
            err = max(((u.float() - w).norm() / w.norm()).item() for u, w in zip(got, want))
            if not err < 0.03:
                raise RuntimeError(f"wrong result, relative error {err}")
            del ref, s, y, want, got
            qkv, m = mk(max(1, G // 4608), 4608)
            dp, dm = clock(lambda: sdpa(*qkv)), clock(lambda: sdpa_masked(*qkv, m))
            print(f"[kvdrop] {mode}: {dm * 1e3:.1f} ms, plain {dp * 1e3:.1f} ms: {dm / dp:.1f}x, relative error {err:.4f}", flush=True)
            if best is None or dm / dp < best[0]:
                best = (dm / dp, mode)
        except Exception as e:
            print(f"[kvdrop] {mode} failed: {str(e)[:200]}", flush=True)
    KVD["mode"] = best and best[1]
    print(f"[kvdrop] masked attention: {KVD['mode'] or 'unusable, plain training only'}", flush=True)
    return best and best[0]
