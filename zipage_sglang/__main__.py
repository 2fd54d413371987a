"""`python -m zipage_sglang doctor`: is this installation able to serve with --enable-zipage, and if not, why."""

import argparse
import sys


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zipage_sglang")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check versions, hooks and, with --model-path, a model and flags")
    doctor.add_argument("--model-path", help="folder or hub name of a model to check")
    args, flags = parser.parse_known_args(argv)
    from zipage_patches.doctor import run

    return run(args.model_path, flags)


if __name__ == "__main__":
    sys.exit(main())
