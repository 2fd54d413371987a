"""`python -m zipage_sglang doctor`: is this installation able to serve with --enable-zipage, and if not, why.
`python -m zipage_sglang show TRACE`: a trace of a server with --zipage-trace, as a page for the browser or a picture."""

import argparse
import sys


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zipage_sglang")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check versions, hooks and, with --model-path, a model and flags")
    doctor.add_argument("--model-path", help="folder or hub name of a model to check")
    show = commands.add_parser("show", help="draw a trace of a request (--zipage-trace)")
    show.add_argument("traces", nargs="+", metavar="TRACE", help="file of a trace; those of several ranks are joined")
    show.add_argument("-o", "--output", action="append", metavar="FILE",
                      help="page (.html) or picture (.png) to write, may be repeated; default: TRACE.html")
    show.add_argument("--tokenizer", metavar="MODEL", help="whose tokenizer spells the tokens; default: their ids")
    args, flags = parser.parse_known_args(argv)
    if args.command == "doctor":
        from zipage_patches.doctor import run

        return run(args.model_path, flags)
    if flags:
        parser.error(f"unrecognized arguments: {' '.join(flags)}")
    from zipage_sglang.trace.show import run

    return run(args.traces, args.output, args.tokenizer)


if __name__ == "__main__":
    sys.exit(main())
