"""`python -m zipage_patches.diff OLD NEW`: what two SGLang releases do differently in the functions of the contract.

OLD and NEW: an environment's python, a site-packages folder, or an unpacked wheel.  Sources are parsed, never imported, so
neither release has to run here.  Prints one block per target whose parameters differ or that one of the two lacks, and, with
--bodies, those whose code differs too.  Exit status 1 when there is a difference in parameters.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import pathlib
import subprocess
import sys

from zipage_patches import contract


class Release:
    """The sources of one installed SGLang."""

    def __init__(self, where: str):
        self.root = _site(pathlib.Path(where))
        self._modules: dict[str, ast.Module | None] = {}

    def module(self, name: str) -> ast.Module | None:
        """Syntax tree of a module or package, None if there is none of that name."""
        if name not in self._modules:
            stem = self.root.joinpath(*name.split("."))
            file = next((f for f in (stem.with_suffix(".py"), stem / "__init__.py") if f.is_file()), None)
            self._modules[name] = ast.parse(file.read_text()) if file else None
        return self._modules[name]

    def find(self, path: str) -> ast.AST | None:
        """The definition that a dotted path names: through imports, and in base classes."""
        parts = path.split(".")
        for n in range(len(parts) - 1, 0, -1):
            if self.module(".".join(parts[:n])) is not None:
                return self._in_module(".".join(parts[:n]), parts[n:])
        return None

    def _in_module(self, module: str, parts: list[str]) -> ast.AST | None:
        tree = self.module(module)
        for node in ast.walk(tree) if tree is not None else ():
            if _defines(node, parts[0]):
                return self._in_class(module, node, parts[1:]) if len(parts) > 1 else node
            if isinstance(node, ast.ImportFrom) and node.module:
                source = node.module if not node.level else ".".join([*module.split(".")[: -node.level], node.module])
                for alias in node.names:
                    if (alias.asname or alias.name) == parts[0] and self.module(source) is not None:
                        if found := self._in_module(source, [alias.name, *parts[1:]]):
                            return found
        return None

    def _in_class(self, module: str, node: ast.AST, parts: list[str]) -> ast.AST | None:
        for child in getattr(node, "body", []):
            if _defines(child, parts[0]):
                return child
        for base in getattr(node, "bases", []):
            if not isinstance(base, ast.Name) or base.id == getattr(node, "name", None):
                continue
            if (found := self._in_module(module, [base.id, *parts])) is not None:
                return found
        return None


def _site(where: pathlib.Path) -> pathlib.Path:
    """The folder that holds the package sglang."""
    if where.is_file():
        code = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('sglang').origin).parents[1])"
        where = pathlib.Path(subprocess.run([where, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    if not (where / "sglang" / "srt").is_dir():
        raise SystemExit(f"error: {where} holds no sglang/srt: name a python, a site-packages folder or an unpacked wheel")
    return where


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def parameters(node: ast.AST | None) -> str:
    """What a definition takes, in one line: a function's parameters, or those of a class's constructor."""
    if node is None:
        return "missing"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return f"({ast.unparse(node.args)})"
    if not isinstance(node, ast.ClassDef):
        return "a value"
    constructor = next((child for child in node.body if _defines(child, "__init__")), None)
    return f"class ({ast.unparse(constructor.args)})" if isinstance(constructor, ast.FunctionDef) else "class"


def body(node: ast.AST | None) -> list[str]:
    """Normalised code of a function, comments and docstring left out."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    code = node.body[ast.get_docstring(node) is not None :]
    return [line for statement in code for line in ast.unparse(statement).splitlines()]


def compare(old: Release, new: Release, paths: list[str], bodies: bool = False) -> list[str]:
    """One block of text per path that differs."""
    blocks = []
    for path in paths:
        a, b = old.find(path), new.find(path)
        if parameters(a) != parameters(b):
            blocks.append(f"{path}\n  old {parameters(a)}\n  new {parameters(b)}")
        if bodies and body(a) != body(b):
            changes = difflib.unified_diff(body(a), body(b), "old", "new", lineterm="", n=2)
            blocks.append("\n".join([f"{path}: code", *(f"  {line}" for line in changes)]))
    return blocks


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zipage_patches.diff", description=__doc__.split("\n")[0])
    parser.add_argument("old", help="an environment's python, a site-packages folder or an unpacked wheel")
    parser.add_argument("new")
    parser.add_argument("--bodies", action="store_true", help="also print how the code of each function changed")
    args = parser.parse_args(argv)
    paths = list(dict.fromkeys(t.name for t in contract.STAGE1 + contract.CPU + contract.STAGE2 + contract.CALLS))
    blocks = compare(Release(args.old), Release(args.new), paths, args.bodies)
    print("\n".join(blocks) or "no difference")
    return 1 if blocks else 0


if __name__ == "__main__":
    sys.exit(main())
