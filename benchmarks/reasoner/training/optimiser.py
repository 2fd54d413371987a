"""Muon for the matrices."""
import torch


def newton_schulz(g, steps=5):
    x = g.bfloat16() if g.is_cuda else g.float()
    tr = x.shape[-2] > x.shape[-1]
    if tr:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tr else x).float()


class Muon:
    def __init__(self, params, lr, mom=0.95, wd=0.0):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.m = {s: torch.zeros(len(ps), *s, device=ps[0].device) for s, ps in self.groups.items()}
        self.lr, self.mom, self.wd = lr, mom, wd

    @torch.no_grad()
    def step(self, scale):
        for s, ps in self.groups.items():
            g = torch.stack([p.grad for p in ps])
            m = self.m[s]
            m.lerp_(g, 1 - self.mom)
            u = newton_schulz(g.lerp(m, self.mom))
            f = self.lr * scale * max(1.0, s[0] / s[1]) ** 0.5
            if self.wd:
                torch._foreach_mul_(ps, 1 - self.lr * scale * self.wd)
            torch._foreach_add_(ps, list(u.unbind(0)), alpha=-f)
