"""The commands of `python -m zipage_sglang`."""

from __future__ import annotations

import argparse
import json
import sys


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit status.  Flags that a command does not know go to SGLang's parser."""
    parser = argparse.ArgumentParser(prog="python -m zipage_sglang", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", allow_abbrev=False,
                                 help="check versions, hooks and, with --model-path, a model and flags")
    doctor.add_argument("--model-path", help="folder or hub name of a model to check")
    _add_plan(commands)
    _add_show(commands)
    args, flags = parser.parse_known_args(argv)
    if args.command == "plan":
        return _plan(args, flags)
    if args.command == "show":
        if flags:
            parser.error(f"unrecognized arguments: {' '.join(flags)}")
        from zipage_sglang.trace import show

        return show.run(args.traces, args.output, args.tokenizer)
    from zipage_patches.doctor import run

    return run(args.model_path, flags)


def _add_show(commands):
    show = commands.add_parser("show", allow_abbrev=False, help="draw a trace of a request (--zipage-trace)")
    show.add_argument("traces", nargs="+", metavar="TRACE", help="file of a trace; those of several ranks are joined")
    show.add_argument("-o", "--output", action="append", metavar="FILE",
                      help="page (.html) or picture (.png) to write, may be repeated; default: TRACE.html")
    show.add_argument("--tokenizer", metavar="MODEL", help="whose tokenizer spells the tokens; default: their ids")


def _add_plan(commands):
    plan = commands.add_parser(
        "plan", allow_abbrev=False, help="what fits and how fast, from a config.json alone",
        description="KV pool, requests that fit and expected speed with compression and without, from a config.json alone. "
                    "Server flags (--tp-size, --page-size, --mem-fraction-static, --max-total-tokens, --zipage-...) count too.")
    add = plan.add_argument
    add("--model-path", required=True, help="folder, config.json or hub name")
    add("--gpu", help="a known GPU, for --gpu-memory and --bandwidth: H200, H100, A100-80GB, L40S, ...")
    add("--gpu-memory", type=float, metavar="GIB", help="memory of one GPU")
    add("--bandwidth", type=float, metavar="GB/S", help="memory bandwidth of one GPU, for the times")
    add("--weights", type=float, metavar="GIB", help="weights of the whole model, if they cannot be counted from the config")
    add("--budget", type=int, metavar="K", help="same as --zipage-budget")
    add("--prompt-tokens", type=int, default=0, metavar="N", help="of a request; default 0")
    add("--output-tokens", type=int, metavar="N", help="of a request; default: up to the context length")
    add("--json", action="store_true", help="everything, as JSON")


def _plan(args, flags: list[str]) -> int:
    from zipage_sglang.sizing import hardware

    try:
        gpu = hardware.find(args.gpu) if args.gpu else None
        memory = args.gpu_memory or (gpu and gpu.memory)
        if not memory or memory <= 0:
            raise ValueError("--gpu-memory: say how many GiB a GPU has, or which GPU it is (--gpu H200)")
        name = args.gpu or (None if args.bandwidth else hardware.by_memory(memory))
        bandwidth = args.bandwidth or (hardware.find(name).bandwidth if name else None)
        if args.prompt_tokens < 0 or (args.output_tokens or 1) < 0:
            raise ValueError("--prompt-tokens and --output-tokens must not be negative")
        if args.budget is not None:
            flags = [*flags, "--zipage-budget", str(args.budget)]
        from zipage_patches.sizing import setting_of
        from zipage_sglang.sizing import planner, report

        setting = setting_of(args.model_path, memory, flags, args.weights)
        plan = planner.make_plan(setting, args.prompt_tokens, args.output_tokens, bandwidth)
    except (ValueError, AssertionError, OSError) as error:  # the last two are SGLang's and transformers' ways to say no
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(report.as_dict(plan), indent=1))
    else:
        shown = f"{name or 'GPU'} ({memory:g} GiB" + (f", {bandwidth:,.0f} GB/s)" if bandwidth else ")")
        print(report.as_text(plan, shown, args.prompt_tokens, args.output_tokens))
    return 0
