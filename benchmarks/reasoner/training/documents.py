"""Training documents: curriculum, sampling, position ids (numpy only; runs in worker processes)."""
import math

import numpy as np

from benchmarks.reasoner import tasks

PAD, BOS, EOS = 0, 1, 2
MAXPOS = 16384


def bucket_len(n):
    for lim, st in ((512, 64), (1024, 128), (1 << 30, 256)):
        if n <= lim:
            return (n + st - 1) // st * st


def curriculum(f, max_len):
    """(longest document in tokens, share of arithmetic warm-up docs) at training progress f in [0,1]."""
    for lim, cap in ((0.08, 320), (0.18, 640), (0.30, 1280), (0.45, 2560), (9, max_len)):
        if f < lim:
            break
    ar = 0.35 if f < 0.08 else 0.2 if f < 0.18 else 0.08 if f < 0.35 else 0.02
    return min(cap, max_len), ar


def sample_doc(rng, cap, ar):
    """-> (ids, loss mask) as lists; len <= cap"""
    g = tasks.TOK2ID
    if rng.random() < ar:
        p, c, m = tasks.gen_arith(rng, rng.randint(20, 50))
        pi = [BOS, g["<|user|>"]] + [g[t] for t in p] + [g["<|assistant|>"]]
        return pi + [g[t] for t in c], [0] * len(pi) + m, len(pi)
    while True:
        fam = rng.choices(tasks.FAMILIES, (0.22, 0.3, 0.28, 0.2))[0]
        lo = 100
        t = math.exp(rng.uniform(math.log(lo), math.log(cap * 0.97)))
        pr = tasks.gen(fam, rng, max(lo, int(t)))
        a, b = pr.ids()
        if len(a) + len(b) <= cap:
            return a + b, [0] * len(a) + [1] * len(b), len(a)


def make_positions(rng, n, plen):
    """Position ids: random start, sometimes a gap between prompt and CoT (so RoPE sees distances to 16k)."""
    pos = np.arange(n)
    slack = MAXPOS - n - 1
    if slack <= 0 or rng.random() < 0.4:
        return pos
    if rng.random() < 0.33:
        gap = rng.randint(0, slack)
        pos[plen:] += gap
        slack -= gap
    return pos + rng.randint(0, slack)
