"""Length-bucketed batches from worker processes to the device.

A micro-batch is T tokens = groups of G tokens; a group holds rows of one length (one document per row), so no attention
mask is needed.  In a share of the groups (KV dropout) some tokens become invisible from some query index on.
"""
import multiprocessing as mp
import queue
import random
import signal
import threading
import traceback
import zlib

import numpy as np
import torch

from benchmarks.reasoner.training.documents import PAD, bucket_len, curriculum, make_positions, sample_doc
from benchmarks.reasoner.training.kvdrop import NEVER, kv_dropout


class Batcher:
    def __init__(self, seed, T, G, max_len, kv=(0.15, 0.2)):
        self.rng, self.T, self.G, self.max_len = random.Random(seed), T, G, max_len
        self.b, self.groups = {}, []
        self.kv, self.kvrng, self.kvbad = kv, np.random.default_rng(zlib.crc32(seed.encode())), 0

    def hide(self, rows, L):
        """evict vector of a group (see evict_index), or None"""
        ev = np.full((self.G,), NEVER, np.int16)
        try:
            for r, (ids, _, pl) in enumerate(rows):
                ev[r * L:r * L + len(ids)] = kv_dropout(ids, pl, self.kvrng, *self.kv)
            return ev
        except Exception:
            self.kvbad += 1
            if self.kvbad < 3:
                traceback.print_exc()
            return None

    def next(self, f, share=0.0):
        T, G = self.T, self.G
        while len(self.groups) < T // G:
            cap, ar = curriculum(f, min(self.max_len, G))
            ids, m, pl = sample_doc(self.rng, cap, ar)
            L = min(bucket_len(len(ids)), G)
            rows = self.b.setdefault(L, [])
            rows.append((ids, m, pl))
            if len(rows) == G // L:
                x = np.full((G,), PAD, np.int16)
                y = np.full((G,), -1, np.int16)
                p = np.zeros((G,), np.int16)
                for r, (ids, m, pl) in enumerate(rows):
                    n, o = len(ids), r * L
                    a = np.asarray(ids, np.int16)
                    x[o:o + n] = a
                    y[o:o + n - 1] = np.where(np.asarray(m[1:], bool), a[1:], -1)
                    pp = make_positions(self.rng, n, pl)
                    p[o:o + n] = pp
                    p[o + n:o + L] = pp[-1]
                ev = self.hide(rows, L) if self.kvrng.random() < share else None
                self.groups.append((x, y, p, np.full((G,), NEVER, np.int16) if ev is None else ev, (len(rows), L), ev is not None))
                self.b[L] = []
        gs, self.groups = self.groups[:T // G], self.groups[T // G:]
        self.rng.shuffle(gs)
        return (*(np.concatenate([g[i] for g in gs]) for i in range(4)), [g[4] for g in gs], [g[5] for g in gs])


def worker(seed, q, prog, share, T, G, max_len, kv):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    b = Batcher(seed, T, G, max_len, kv)
    while True:
        q.put(b.next(prog.value, share.value))


class Feed:
    """Worker processes -> thread -> device tensors. Falls back to in-process generation."""
    def __init__(self, n, T, G, max_len, seed, share=0.0, kv=(0.15, 0.2)):
        self.prog, self.share = mp.Value("d", 0.0), mp.Value("d", share)      # share: groups with KV dropout
        self.local = Batcher(f"train-local-{seed}", T, G, max_len, kv)
        self.procs, self.q, self.stop = [], None, False
        if n > 0:
            try:
                ctx = mp.get_context("fork")
                self.q = ctx.Queue(maxsize=2 * n)
                for i in range(n):
                    p = ctx.Process(target=worker, args=(f"train-{seed}-{i}", self.q, self.prog, self.share, T, G, max_len, kv), daemon=True)
                    p.start()
                    self.procs.append(p)
            except Exception:
                traceback.print_exc()
                self.q = None
        self.out = queue.Queue(maxsize=4)

    def start(self, device):
        self.device = device
        def run():
            while not self.stop:
                item = None
                if self.q is not None:
                    try:
                        item = self.q.get(timeout=20)
                    except Exception:
                        if not any(p.is_alive() for p in self.procs):
                            print("[feed] workers dead; generating in process", flush=True)
                            self.q = None
                if item is None:
                    item = self.local.next(self.prog.value, self.share.value)
                x, y, p, ev, segs, mk = item
                ts = [torch.from_numpy(a.astype(np.int64)) for a in (x, y, p, ev)]
                nv = int((y >= 0).sum())
                if device != "cpu":
                    try:
                        ts = [t.pin_memory() for t in ts]
                    except Exception:
                        pass
                while not self.stop:
                    try:
                        self.out.put((ts, segs, nv, mk), timeout=1)
                        break
                    except queue.Full:
                        pass
        self.t = threading.Thread(target=run, daemon=True)
        self.t.start()

    def get(self):
        while True:
            try:
                ts, segs, nv, mk = self.out.get(timeout=10)
                break
            except queue.Empty:
                if not self.t.is_alive():
                    print("[feed] thread died; generating inline", flush=True)
                    x, y, p, ev, segs, mk = self.local.next(self.prog.value, self.share.value)
                    ts, nv = [torch.from_numpy(v.astype(np.int64)) for v in (x, y, p, ev)], int((y >= 0).sum())
                    break
        return [t.to(self.device, non_blocking=True) for t in ts], segs, nv, mk

    def close(self):
        self.stop = True
        for p in self.procs:
            p.terminate()
