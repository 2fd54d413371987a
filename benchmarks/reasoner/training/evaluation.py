"""Teacher-forced and generated exact match during training."""
import numpy as np
import torch

from benchmarks.reasoner import tasks
from benchmarks.reasoner.training.documents import PAD
from benchmarks.reasoner.training.kvdrop import NEVER, evict_index, needed_until
from benchmarks.reasoner.training.model import detok, lin, rms


class EvalSet:
    def __init__(self, levels, n, seed="eval"):
        self.items = {}
        for L in levels:
            for f in tasks.FAMILIES:
                if f == "chain" and L > 1650 and any(l >= 1650 for l in levels if l < L):
                    continue
                self.items[f, L] = [tasks.gen(f, f"{seed}-{i}", L) for i in range(n)]

        self.ev = {}
        for k, ps in self.items.items():     # KV dropout for the masked variant: everything droppable goes, every 128 tokens
            self.ev[k] = []
            for i, p in enumerate(ps):
                a, b = p.ids()
                need = needed_until(a + b, len(a), "latest" if i % 2 else "all")
                self.ev[k].append(evict_index(need, len(a), np.random.default_rng(i), 1.0, 128, False))

    @torch.no_grad()
    def teacher_forced(self, model, P, dtype, kvdrop=False):
        """Share of problems whose argmax is right at every CoT token (= greedy full-text exact match)."""
        res, dev = {}, model.device
        for (f, L), ps in self.items.items():
            rows = [p.ids() for p in ps]
            n = max(len(a) + len(b) for a, b in rows)
            n = (n + 63) // 64 * 64 if kvdrop else n
            bs = max(1, min(len(rows), 65536 // n))
            ok, err, tot = 0, 0, 0
            for i in range(0, len(rows), bs):
                rr = rows[i:i + bs]
                x = torch.full((len(rr), n), PAD)
                y = torch.full((len(rr), n), -1)
                ev = torch.full((len(rr), n), NEVER)
                for r, (a, b) in enumerate(rr):
                    s = torch.tensor(a + b)
                    x[r, :len(s)] = s
                    ev[r, :len(s)] = torch.from_numpy(self.ev[f, L][i + r])
                    y[r, len(a) - 1:len(s) - 1] = s[len(a):]
                x, y = x.to(dev), y.to(dev)
                pos = torch.arange(n, device=dev).expand(len(rr), n).reshape(-1)
                h = model.hidden(P, x.reshape(-1), pos, [(len(rr), n)], len(rr) * n, dtype, fast=False, ev=ev.to(dev).view(-1), mk=[kvdrop])
                pred = lin(rms(h, P["model.norm.weight"]), model.head(P)).argmax(-1).view(len(rr), n)
                bad = ((pred != y) & (y >= 0)).sum(1)
                ok += int((bad == 0).sum())
                err += int(bad.sum())
                tot += int((y >= 0).sum())
            res[f"{f}/{L}"] = (ok / len(rows), err / max(1, tot))
        return res

    def generated(self, model, P, level, n, temperature=0.0, max_new=None, deadline=None):
        sel = [(f, p) for (f, L), ps in self.items.items() if L == level for p in ps[:n]]
        if not sel:
            return {}
        mx = max_new or max(len(p.cot_toks) for _, p in sel) + 8
        outs = model.generate(P, [p.ids()[0] for _, p in sel], mx, temperature, deadline=deadline)
        r = {}
        for (f, p), o in zip(sel, outs):
            r.setdefault(f, []).append(p.check(detok(o)))
        return {f: sum(v) / len(v) for f, v in r.items()}
