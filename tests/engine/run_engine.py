"""Runs one SGLang engine in a process of its own: python run_engine.py SPEC.json RESULT.json

SPEC: {"engine": kwargs of sgl.Engine, "rounds": [[request, ...], ...], "refused": [request, ...]} with request = {"rid", "input_ids",
"params"} and
perhaps "after": [rid, n], a next turn: the first n output tokens of an earlier request are appended to the input, and
"lora": the name of an adapter.
Requests of a round run together; rounds follow each other, with an idle pause and SGLang's idle leak checks in between.
Those of "refused" are sent one by one after the rounds, and must raise ValueError.
RESULT: {"rounds": [[{"ids", "reason", "cached", "zipage"}]], "seconds": of each round, "refusals": what was said to each refused one, or null where nothing was,
"infos": the `zipage` block or null of each scheduler, "flushed": bool}.
"""

import json
import sys
import time


def main(spec_path, result_path):
    import sglang as sgl

    with open(spec_path) as f:
        spec = json.load(f)
    engine = sgl.Engine(**spec["engine"])
    rounds, seconds, outputs_of = [], [], {}
    for requests in spec["rounds"]:
        for r in requests:
            if "after" in r:
                rid, n = r["after"]
                r["input_ids"] = r["input_ids"] + outputs_of[rid][:n]
        start = time.monotonic()
        outputs = engine.generate(
            input_ids=[r["input_ids"] for r in requests],
            sampling_params=[r["params"] for r in requests],
            rid=[r["rid"] for r in requests],
            lora_path=[r.get("lora") for r in requests] if any("lora" in r for r in requests) else None,
        )
        seconds.append(time.monotonic() - start)
        rounds.append([
            {"ids": o["output_ids"], "reason": o["meta_info"]["finish_reason"], "cached": o["meta_info"].get("cached_tokens", 0),
             "zipage": o["meta_info"].get("zipage")}
            for o in outputs
        ])
        outputs_of |= {r["rid"]: o["output_ids"] for r, o in zip(requests, outputs)}
        time.sleep(0.5)
    refusals = []
    for r in spec["refused"]:
        try:
            engine.generate(input_ids=r["input_ids"], sampling_params=r["params"], rid=r["rid"])
            refusals.append(None)
        except ValueError as error:
            refusals.append(str(error))
    infos = [state.get("zipage") for state in engine.get_server_info()["internal_states"]]
    flushed = engine.flush_cache().success
    engine.shutdown()
    with open(result_path, "w") as f:
        json.dump({"rounds": rounds, "seconds": seconds, "refusals": refusals, "infos": infos, "flushed": flushed}, f)


if __name__ == "__main__":
    main(*sys.argv[1:])
