"""KV dropout: which tokens does no later step need, and from which query index on are they hidden."""
import numpy as np

from benchmarks.reasoner import tasks


NEVER = 32767
LOCAL, RECENT = 24, 32                       # a token outside any group serves the next LOCAL tokens; the last RECENT are always visible
_I = tasks.TOK2ID
NUM0, VAR0, NAME1 = _I["00"], _I[tasks.VARS[0]], _I[tasks.NAMES[-1]]


def needed_until(ids, plen, mode="all", prompt=False, header=True):
    """For each token the last index whose prediction may need it (len(ids) = needed for ever).
    Value groups (`h 01 89`, `x7 66`, `s 04 60`) with the same name and version are copies of each other. mode: which copy serves
    later uses: all / latest (the one before the use) / first. prompt: prompt tokens may become unneeded too. header: `# ...` lines
    are needed until the next one (recall: always, it reads its block number there)."""
    a = np.asarray(ids, np.int64)
    n = len(a)
    need = np.arange(n) + LOCAL
    need[:plen] = n
    num = np.zeros(n + 2, bool)
    num[:n] = (a >= NUM0) & (a < NUM0 + 100)
    name = ((a >= VAR0) & (a <= NAME1)) | (a == _I["s"])

    def copies(start, ln, key, mode, part=True):
        o = np.lexsort((start, key))
        st, ln, ks = start[o], ln[o], key[o]
        end = st + ln - 1
        new = np.r_[True, ks[1:] != ks[:-1]]
        run = np.cumsum(new) - 1
        lastend = end[np.r_[np.flatnonzero(new)[1:], len(st)] - 1][run]
        nxt = np.where(np.r_[new[1:], True], end, np.r_[end[1:], 0])
        until = lastend if mode == "all" else nxt if mode == "latest" else np.where(new, lastend, end)
        if part:                             # prompt tokens start at "for ever": lower them to what these copies say
            pr = st < plen
            for i in range(int(ln.max())):
                need[st[pr & (i < ln)] + i] = 0
        for i in range(int(ln.max())):
            w = i < ln
            np.maximum.at(need, st[w] + i, until[w])

    st = np.flatnonzero(name & num[1:n + 1])
    if len(st):
        ver = num[st + 2]
        copies(st, 2 + ver, a[st] * 128 + np.where(ver, a[st + 1] - NUM0 + 1, 0), mode, prompt)
    fam = tasks.VOCAB[a[2]]
    if prompt and fam in tasks.FAMILIES:     # lines that the CoT restates: code, links, facts, plan
        if fam == "ram":
            st = np.flatnonzero((a == _I["A"]) | (a == _I["B"]))
            ln, key = 4, a[st] * 512 + a[np.minimum(st + 1, n - 1)]
        else:
            back = {"loop": 4, "chain": 2, "recall": 0}[fam]
            st = np.flatnonzero(a == _I[":" if fam == "chain" else "@"]) - back
            ln, key = (4 if fam == "recall" else 7), a[st + (1 if fam == "recall" else 0)]
        if len(st):
            copies(st, np.full(len(st), ln), key, "latest" if mode == "latest" else "first")
        one = np.flatnonzero(a[:plen] == _I["acc" if fam == "ram" else "init"])
        if fam == "ram" or fam == "recall":  # start values, read once
            for i in one[-1:]:
                need[i:min(i + 4, plen - 1)] = plen + 64
    if header or fam == "recall":
        hs = np.flatnonzero(a == _I["#"])
        hs = hs[hs >= plen]
        for h, nx in zip(hs, [*(hs[1:] + 12), n]):
            e = h
            while e < n - 1 and a[e] != _I[";"]:
                e += 1
            need[h:e + 1] = np.maximum(need[h:e + 1], nx)
    return need


def evict_index(need, plen, rng, p, b, spans):
    """Eviction events every b tokens from a random start: at event t each visible token j < t - RECENT with need[j] < t goes with
    probability p (spans: runs of 4-16 tokens share their luck). -> query index from which each token is invisible, NEVER if none."""
    n = len(need)
    t0 = plen + int(rng.integers(RECENT + 1, RECENT + 1 + b))
    if spans:
        ln = rng.integers(4, 17, n // 4 + 1)
        k = np.repeat(rng.geometric(p, len(ln)), ln)[:n]
    else:
        k = rng.geometric(p, n)              # the how-manieth eligible event takes the token
    first = np.maximum(np.arange(n) + RECENT, need) + 1
    t = t0 + b * (np.maximum(0, -((t0 - first) // b)) + k - 1)
    return np.where(t < n, t, NEVER)


def kv_dropout(ids, plen, rng, prompt_share, window_share):
    p = 1.0 if rng.random() < window_share else rng.uniform(0.2, 1.0)
    mode = "all" if rng.random() < 0.5 else "latest" if rng.random() < 0.7 else "first"
    need = needed_until(ids, plen, mode, prompt=rng.random() < prompt_share, header=rng.random() < 0.75)
    return evict_index(need, plen, rng, p, int(rng.choice((64, 128, 256))), rng.random() < 0.5)
