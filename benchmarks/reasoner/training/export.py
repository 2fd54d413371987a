"""Hugging Face folder out and in, checked against transformers."""
import argparse
import json
import math
import os
import traceback

import torch

from benchmarks.reasoner import tasks
from benchmarks.reasoner.training.documents import BOS, EOS, MAXPOS, PAD
from benchmarks.reasoner.training.model import Cfg, Model, lin, rms


def build_tokenizer(out):
    from tokenizers import Tokenizer, models, pre_tokenizers, AddedToken
    t = Tokenizer(models.WordLevel(tasks.TOK2ID, unk_token="<|unk|>"))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in tasks.SPECIALS[:6]])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in tasks.SPECIALS[6:]])
    t.save(os.path.join(out, "tokenizer.json"))
    cfg = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>",
               unk_token="<|unk|>", model_max_length=MAXPOS, clean_up_tokenization_spaces=False, add_bos_token=False,
               padding_side="left", chat_template=tasks.CHAT_TEMPLATE,
               added_tokens_decoder={str(i): dict(content=s, lstrip=False, normalized=False, rstrip=False, single_word=False,
                                                  special=i < 6) for i, s in enumerate(tasks.SPECIALS)})
    json.dump(cfg, open(os.path.join(out, "tokenizer_config.json"), "w"), indent=1)
    return t


def save_model(c, P, out, note=None, shard_mib=14.9):
    """HF folder: <=15 MiB balanced shards."""
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    sd = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in P.items()}
    tot = sum(v.numel() * 2 for v in sd.values())
    n = max(1, math.ceil(tot / (shard_mib * 2 ** 20)))
    while True:
        shards, cum = [{} for _ in range(n)], 0
        for k, v in sd.items():
            b = v.numel() * 2
            shards[min(n - 1, int((cum + b / 2) * n / tot))][k] = v
            cum += b
        if max(sum(v.numel() * 2 for v in s.values()) for s in shards) <= 15 * 2 ** 20 - 65536 or n > 8:
            break
        n += 1
    for f in os.listdir(out):
        if f.startswith("model") and ".safetensors" in f:
            os.remove(os.path.join(out, f))
    if n == 1:
        save_file(sd, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    else:
        wm = {}
        for i, s in enumerate(shards):
            fn = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
            save_file(s, os.path.join(out, fn), metadata={"format": "pt"})
            wm.update({k: fn for k in s})
        json.dump({"metadata": {"total_size": tot}, "weight_map": wm}, open(os.path.join(out, "model.safetensors.index.json"), "w"), indent=0)
    cj = c.hf()
    if note:
        cj["reasoner_note"] = note
    json.dump(cj, open(os.path.join(out, "config.json"), "w"), indent=1)
    json.dump(dict(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, do_sample=False, max_new_tokens=8192),
              open(os.path.join(out, "generation_config.json"), "w"), indent=1)
    build_tokenizer(out)


def load_model(path, device):
    from safetensors.torch import load_file
    j = json.load(open(os.path.join(path, "config.json")))
    a = argparse.Namespace(d=j["hidden_size"], layers=j["num_hidden_layers"], heads=j["num_attention_heads"],
                           kv=j["num_key_value_heads"], head_dim=j["head_dim"], ff=j["intermediate_size"],
                           theta=j["rope_parameters"]["rope_theta"], tie=j["tie_word_embeddings"])
    m = Model(Cfg(a), device)
    for f in sorted(os.listdir(path)):
        if f.startswith("model") and f.endswith(".safetensors"):
            for k, v in load_file(os.path.join(path, f)).items():
                if k in m.p:
                    m.p[k] = v.to(device).float()
    return m


def hf_check(model, P, out, device):
    try:
        from transformers import AutoTokenizer, Qwen3ForCausalLM
        tok = AutoTokenizer.from_pretrained(out)
        p = tasks.gen("ram", "hfcheck", 300)
        ids = tok(p.text, add_special_tokens=False).input_ids
        a, b = p.ids()
        s1 = ids == a
        ct = tok.apply_chat_template([{"role": "user", "content": p.prompt}], add_generation_prompt=True, tokenize=True)
        s2 = list(ct["input_ids"] if hasattr(ct, "keys") else ct) == a
        hf = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32).to(device).eval()
        x = torch.tensor([a + b], device=device)
        with torch.no_grad():
            l1 = hf(x).logits[0].float()
            n = x.shape[1]
            Q = {k: v.detach().bfloat16().float() for k, v in P.items()}
            h = model.hidden(Q, x[0], torch.arange(n, device=device), [(1, n)], n, torch.float32, fast=False)
            l2 = lin(rms(h, Q["model.norm.weight"]), model.head(Q)).float()
        print(f"[hf] tokenizer text {s1} chat {s2}; decode ok {tok.decode(b) == p.cot}; max logit diff {(l1 - l2).abs().max():.5f} "
              f"(logit scale {l2.abs().max():.1f}), argmax agree {(l1.argmax(-1) == l2.argmax(-1)).float().mean():.4f}", flush=True)
    except Exception:
        traceback.print_exc()
        print("[hf] check failed (weights are saved anyway)", flush=True)
