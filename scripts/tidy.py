#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a build directory's compile_commands.json that lie in the given
folders, in parallel, and skipping what was clean before and has not changed since (a stamp in the build
directory holds the hash of the file, of every header and of the rules)."""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def digest(paths):
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def tidy(source, build):
    began = time.monotonic()
    done = subprocess.run(["clang-tidy-14", "--quiet", "--warnings-as-errors=*", "-p", str(build),
                           str(source)], capture_output=True, text=True, check=False)
    return source, done.returncode, done.stdout, done.stderr, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folders", nargs="*", default=["src", "tools"])
    args = parser.parse_args()

    headers = sorted(p for top in {"include", "src", "tools", *args.folders}
                     for p in (ROOT / top).rglob("*")
                     if p.suffix in (".h", ".hpp"))
    rules = digest([ROOT / ".clang-tidy", *headers])
    commands = json.loads((args.build / "compile_commands.json").read_text())
    sources = sorted({pathlib.Path(c["file"]) for c in commands
                      if any(pathlib.Path(c["file"]).is_relative_to(ROOT / f)
                             for f in args.folders)})
    stamps = args.build / "tidy"
    stamps.mkdir(exist_ok=True)
    todo = {s: stamps / (digest([s]) + rules[:16]) for s in sources}
    todo = {s: stamp for s, stamp in todo.items() if not stamp.exists()}

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for source, code, out, err, seconds in pool.map(lambda s: tidy(s, args.build), todo):
            print(f"{source.relative_to(ROOT)}: {'clean' if code == 0 else 'FAILED'}, "
                  f"{seconds:.0f} s", file=sys.stderr)
            if code == 0:
                todo[source].touch()
            else:
                failed += 1
                print(out + (err if not out.strip() else ""))
    print(f"clang-tidy: {len(sources)} files, {len(sources) - len(todo)} unchanged, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
