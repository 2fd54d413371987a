"""pass@1 (exact match of the final answer) of a saved reasoner with full KV, without SGLang, per family and difficulty.

    python -m benchmarks.reasoner.evaluate [--model DIR] [--levels 300,1000] [--n 32] [--temps 0,0.6] [--backend fast|hf]

fast: the trainer's own batched static-cache decoder on the saved weights; hf: transformers generate().
Problems: tasks.gen(family, f"test-{i}", level) (seeds never used in training).
"""
import argparse
import json
import time

import torch

from benchmarks.reasoner import MODEL_PATH, tasks
from benchmarks.reasoner.training.attention import pick_attention
from benchmarks.reasoner.training.documents import EOS, PAD
from benchmarks.reasoner.training.export import load_model
from benchmarks.reasoner.training.model import detok


def hf_generate(model, prompts, max_new, temp, seed):
    torch.manual_seed(seed)
    n = max(map(len, prompts))
    x = torch.full((len(prompts), n), PAD)
    m = torch.zeros_like(x)
    for i, p in enumerate(prompts):                       # left padding
        x[i, n - len(p):] = torch.tensor(p)
        m[i, n - len(p):] = 1
    kw = dict(do_sample=True, temperature=temp, top_k=0, top_p=1.0) if temp > 0 else dict(do_sample=False)
    with torch.no_grad():
        o = model.generate(input_ids=x.to(model.device), attention_mask=m.to(model.device), max_new_tokens=max_new,
                           pad_token_id=PAD, eos_token_id=EOS, **kw)
    return o[:, n:].tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default=str(MODEL_PATH))
    ap.add_argument("--families", default=",".join(tasks.FAMILIES))
    ap.add_argument("--levels", default=",".join(map(str, tasks.LEVELS)))
    ap.add_argument("--n", type=int, default=32)
    ap.add_argument("--temps", default="0,0.6")
    ap.add_argument("--samples", type=int, default=1, help="samples per problem at temperature > 0 (pass@1 = their mean)")
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--backend", default="fast", choices=["fast", "hf"])
    ap.add_argument("--dtype", default=None, choices=["bf16", "fp32"])
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--max-minutes", type=float, default=1e9)
    ap.add_argument("--json", default=None)
    a = ap.parse_args()
    dt = {"bf16": torch.bfloat16, "fp32": torch.float32}[a.dtype or ("fp32" if a.device == "cpu" else "bf16")]
    t0 = time.time()
    if a.backend == "hf":
        from transformers import Qwen3ForCausalLM
        m = Qwen3ForCausalLM.from_pretrained(a.model, dtype=dt).to(a.device).eval()
    else:
        m = load_model(a.model, a.device)
        pick_attention(m.c, a.device)
    rows = []
    for L in map(int, a.levels.split(",")):
        probs = [(f, i, tasks.gen(f, f"test-{i}", L)) for f in a.families.split(",") for i in range(a.n)]
        mx = max(len(p.cot_toks) for _, _, p in probs) + 32
        for temp in map(float, a.temps.split(",")):
            if time.time() - t0 > a.max_minutes * 60:
                print("time is up")
                break
            todo = [p for p in probs for _ in range(a.samples if temp > 0 else 1)]
            t, ntok, r = time.time(), 0, {}
            for b in range(0, len(todo), a.batch):
                part = todo[b:b + a.batch]
                pr = [p.ids()[0] for _, _, p in part]
                outs = (hf_generate(m, pr, mx, temp, b) if a.backend == "hf" else
                        m.generate(m.p, pr, mx, temp, dtype=dt, seed=b))
                for (f, _, p), o in zip(part, outs):
                    o = o[:o.index(EOS) + 1] if EOS in o else o
                    txt = detok(o)
                    ntok += len(o)
                    r.setdefault(f, []).append((p.check(txt), txt == p.cot, len(p.cot_toks)))
            for f, v in r.items():
                row = dict(family=f, level=L, temp=temp, n=len(v), pass1=sum(x[0] for x in v) / len(v),
                           exact_cot=sum(x[1] for x in v) / len(v), mean_cot=sum(x[2] for x in v) / len(v))
                rows.append(row)
                print(f"{f:7s} level {L:5d} T={temp:.1f} n={row['n']:4d} mean CoT {row['mean_cot']:6.0f}  "
                      f"pass@1 {row['pass1'] * 100:5.1f}%  exact CoT {row['exact_cot'] * 100:5.1f}%", flush=True)
            print(f"   -- {ntok} tokens in {time.time() - t:.1f}s", flush=True)
    for temp in sorted({r["temp"] for r in rows}):
        v = [r for r in rows if r["temp"] == temp]
        print(f"T={temp}: mean pass@1 {sum(r['pass1'] for r in v) / len(v) * 100:.1f}%")
    if a.json:
        json.dump(rows, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
