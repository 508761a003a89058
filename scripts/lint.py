#!/usr/bin/env python3
"""The house rules of HACKING.md that a compiler does not check. Prints path:line: what is wrong.

Reads the files that git tracks or could track. Sizes are counted on the text without comments and
strings; the C++ reader only has to find functions, so it tracks braces and looks at what stands
before each.
"""
import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

FILE_LINES = 400
FUNCTION_LINES = 80
MAIN_LOOP_LINES = 120  # a kernel's main loop: a function of src/cpu or src/cuda/device so named
MAIN_LOOP = re.compile(r"(main_?loop|kernel)$")
PARAMETERS = 6
FOREIGN_FUNCTIONS = "tests/fake_cuda/fake_cuda.cpp"  # whose parameters are another's choice

# Folder -> the folders and headers that it may include, besides itself.
PUBLIC, CORE = "include/tilewise", "src/core"
BACKENDS = ["src/cpu", "src/cuda", "src/reference"]
FLOORS = {
    PUBLIC: [],
    CORE: [PUBLIC],
    "src/cpu": [CORE, PUBLIC, "src/reference/reference.h"],  # the reference is a row of its table
    "src/cuda": [CORE, PUBLIC],
    "src/reference": [CORE, PUBLIC],
    "src/plan": [*BACKENDS, CORE, PUBLIC],
    "src/api": ["src/plan", *BACKENDS, CORE, PUBLIC],
    "src/io": [PUBLIC, "src/core/half.h"],
    "tools": ["src", PUBLIC],
    "examples": [PUBLIC],
    "python": [PUBLIC],
}
# The drop-in packages: their signatures are another library's.
FOREIGN_SIGNATURES = ROOT / "python/compat"
# The library decides nothing by itself on a process' fate or streams.
FORBIDDEN = re.compile(r"\b(?:printf|fprintf|puts|fputs|abort|exit|_Exit|quick_exit|terminate)\s*\("
                       r"|\bstd::(?:cout|cerr|clog)\b|\bfmt::print\b")

CXX, PYTHON, SHELL = {".c", ".h", ".cpp", ".hpp", ".cuh", ".cu"}, {".py"}, {".sh"}

problems = []


def report(path, line, text):
    problems.append(f"{path.relative_to(ROOT)}:{line}: {text}")


def repository_files():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout
    return [ROOT / f for f in out.splitlines() if (ROOT / f).is_file()]


def blank(match):
    """Comments and strings become spaces, so that places stay where they were."""
    text = match.group(0)
    if text[0] in "\"'":
        return text[0] + " " * (len(text) - 2) + text[-1]
    return re.sub(r"[^\n]", " ", text)


TRIVIA = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.M)


def split_arguments(text):
    """The parts of `text` between commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}" or c == ">" and text[i - 1] != "-":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p for p in parts + [text[start:]] if p.strip() not in ("", "void")]


def matching(text, start, pair):
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    return len(text) - 1


CALL_HEAD = re.compile(r"([A-Za-z_~][\w:~]*|operator\s*\S{1,3})\s*\(")


def function_head(head):
    """(name, parameters) if `head`, what stands before a brace or semicolon, heads a function."""
    if re.match(r"\s*(?:namespace|using|typedef|friend|static_assert|return|enum|extern \")", head):
        return None
    plain = re.sub(r"__attribute__\s*\(\(.*?\)\)|alignas\s*\([^)]*\)|requires\s*\([^)]*\)", "", head)
    found = CALL_HEAD.search(plain)
    if not found or "=" in plain[:found.start()] and "template" not in plain:
        return None
    close = matching(plain, found.end() - 1, "()")
    return found.group(1), split_arguments(plain[found.end():close])


def scan_functions(text):
    """Yields (first line, last line or None for a declaration, name, parameters)."""
    def line_of(place):
        return text.count("\n", 0, place) + 1

    begin, i = 0, 0
    while i < len(text):
        c = text[i]
        first = begin + len(text[begin:i]) - len(text[begin:i].lstrip())
        if c == "(":
            i = matching(text, i, "()")
        elif c == ";":
            head = function_head(text[begin:i])
            if head and not re.match(r"\s*\w+\s*\(", text[begin:i]):  # not a macro's call
                yield line_of(first), None, *head
            begin = i + 1
        elif c == "}":
            begin = i + 1
        elif c == "{":
            head = function_head(text[begin:i])
            if head:
                close = matching(text, i, "{}")
                yield line_of(first), line_of(close), *head
                i = close
            elif "=" in text[begin:i] or re.match(r"\s*enum\b", text[begin:i]):
                i = matching(text, i, "{}")
                continue
            begin = i + 1
        i += 1


def line_limit(path, name):
    folder = path.relative_to(ROOT).as_posix()
    kernel = folder.startswith(("src/cpu/", "src/cuda/device/"))
    return MAIN_LOOP_LINES if kernel and MAIN_LOOP.search(name.lower()) else FUNCTION_LINES


def check_functions(path, text):
    for first, last, name, parameters in scan_functions(text):
        foreign = path.relative_to(ROOT).as_posix() == FOREIGN_FUNCTIONS
        if len(parameters) > PARAMETERS and not foreign:
            report(path, first, f"{name} has {len(parameters)} parameters, at most {PARAMETERS}: "
                                "group what belongs together in a named struct")
        if last and last - first + 1 > line_limit(path, name):
            report(path, first, f"{name} has {last - first + 1} lines, at most "
                                f"{line_limit(path, name)}")
    for found in re.finditer(r"\btemplate\s*<", text):
        close = matching(text, found.end() - 1, "<>")
        count = len(split_arguments(text[found.end():close]))
        if count > PARAMETERS:
            report(path, text.count("\n", 0, found.start()) + 1,
                   f"a template of {count} parameters, at most {PARAMETERS}: use one Config type")


def check_includes(path, raw):
    folder = path.relative_to(ROOT).as_posix()
    floor = next((f for f in FLOORS if folder.startswith(f + "/")), None)
    if not floor:
        return
    for number, line in enumerate(raw.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not found:
            continue
        name = found.group(1)
        target = next((t for t in (ROOT / "include" / name, ROOT / "src" / name,
                                   path.parent / name, ROOT / name) if t.is_file()), None)
        if not target:
            continue  # generated, or another library's
        target = target.resolve().relative_to(ROOT).as_posix()
        if not any(target == a or target.startswith(a + "/") for a in [floor, *FLOORS[floor]]):
            report(path, number, f"{floor} may not include {target}: includes go down the floors "
                                 "(HACKING.md)")


def check_cxx(path, raw):
    text = DIRECTIVE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), TRIVIA.sub(blank, raw))
    check_includes(path, raw)
    check_functions(path, text)
    # A source whose header beside it says what both are for need not say it again.
    if not raw.startswith(("//", "/*")) and not path.with_suffix(".h").is_file():
        report(path, 1, "begins without a comment that says what the file is for")
    if path.is_relative_to(ROOT / "src"):
        for found in FORBIDDEN.finditer(text):
            report(path, text.count("\n", 0, found.start()) + 1,
                   f"'{found.group(0)}': the library never prints or exits; return a Status")


def check_python(path, raw):
    tree = ast.parse(raw)
    if not ast.get_docstring(tree):
        report(path, 1, "begins without a docstring that says what the file is for")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            # A keyword-only argument is named where it is used, as a struct's field would be.
            count = len(node.args.posonlyargs + node.args.args)
            if lines > FUNCTION_LINES:
                report(path, node.lineno, f"{node.name} has {lines} lines, at most {FUNCTION_LINES}")
            if count > PARAMETERS and not path.is_relative_to(FOREIGN_SIGNATURES):
                report(path, node.lineno,
                       f"{node.name} has {count} parameters, at most {PARAMETERS}")


def main():
    env_readers = []
    for path in repository_files():
        shell = path.suffix in SHELL or path.name == "dev" or path.parent.name == ".ci"
        if path.suffix not in CXX | PYTHON and not shell:
            continue
        raw = path.read_text(encoding="utf-8")
        lines = raw.count("\n")
        if lines > FILE_LINES:
            report(path, lines, f"the file has {lines} lines, at most {FILE_LINES}")
        if path.suffix in CXX:
            check_cxx(path, raw)
        elif path.suffix in PYTHON:
            check_python(path, raw)
        elif not re.match(r"#!.*\n# \w", raw):
            report(path, 1, "begins without a comment that says what the file is for")
        if path.is_relative_to(ROOT / "src") and re.search(r"\bgetenv\s*\(", raw):
            env_readers.append(path)
    for path in env_readers[1:]:
        report(path, 1, f"reads an environment variable; only {env_readers[0].relative_to(ROOT)} "
                        "may")
    print("\n".join(problems) or "lint: clean")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
