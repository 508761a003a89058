#!/usr/bin/env python3
"""Writes docs/cli.md: the --help of the built `tilewise` command and of each of its subcommands. With
--check it writes nothing and fails if the page is not what it would write."""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/cli.md"
HEAD = """# The `tilewise` command

Written by `./dev docs` from each subcommand's `--help`.
"""


def help_of(command, *words):
    # argv[0] is "tilewise" whatever the path, so the page does not depend on the build.
    done = subprocess.run(["tilewise", *words, "--help"], executable=command, check=True,
                          capture_output=True, text=True)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def page(command):
    top = help_of(command)
    listed = top.split("Subcommands:")[1]
    parts = [HEAD, f"```\n{top}\n```\n"]
    for name in re.findall(r"^  (\w+) ", listed, re.M):
        parts.append(f"## tilewise {name}\n\n```\n{help_of(command, name)}\n```\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/bin/tilewise")
    args = parser.parse_args()
    text = page(args.command)
    if not args.check:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        sys.exit("docs/cli.md is not what the command's --help says: run ./dev docs")


if __name__ == "__main__":
    main()
