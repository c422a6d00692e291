"""Imports point one way, and nothing that a node can reach starts a process or runs generated code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMFY = {"comfy", "comfy_api", "comfy_extras", "comfy_execution", "execution", "folder_paths", "server", "nodes"}
PROCESSES = {"subprocess", "multiprocessing", "pip", "ensurepip", "runpy", "pty", "code", "codeop"}
OS_CALLS = {"system", "popen", "fork", "forkpty", "startfile", "posix_spawn", "posix_spawnp"}
OS_FAMILIES = ("exec", "spawn")
BUILTINS = {"eval", "exec", "compile", "__import__"}


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_file(parts: tuple[str, ...]) -> Path | None:
    """The file of a module given by its path inside the pack; () is the pack itself."""
    package, module = ROOT.joinpath(*parts, "__init__.py"), ROOT.joinpath(*parts).with_suffix(".py")
    return package if package.exists() else module if parts and module.exists() else None


def own_parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def base_of(path: Path, node: ast.ImportFrom) -> tuple[str, ...]:
    here = own_parts(path)
    package = here if path.name == "__init__.py" else here[:-1]
    return package[: len(package) - node.level + 1] + tuple(node.module.split(".") if node.module else ())


def imports(path: Path) -> tuple[set[Path], set[str]]:
    """Files of the pack and top-level names of other packages that a file imports, at any depth of its code."""
    inside, outside, _ = all_imports(path)
    return inside, outside


def all_imports(path: Path) -> tuple[set[Path], set[str], list[str]]:
    """What `imports` says, and the relative imports that lead nowhere."""
    lost: list[str] = []
    inside: set[Path] = set()
    outside: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            outside |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            outside.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = base_of(path, node)
            for alias in node.names:
                target = module_file((*base, alias.name)) or module_file(base)
                if target is None:
                    lost.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
                    continue
                inside.add(target)
                # Importing a.b.c runs a/__init__.py and a/b/__init__.py first.
                depth = len(own_parts(target))
                inside |= {f for n in range(1, depth) if (f := module_file(own_parts(target)[:n]))}
    return inside - {path}, outside, lost


def reachable(start: Path) -> set[Path]:
    seen, waiting = set(), [start]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += imports(path)[0]
    return seen


def forbidden_calls(path: Path) -> list[str]:
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and node.id in BUILTINS:
            found.append(f"{path.name}:{node.lineno}: {node.id}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in OS_CALLS or node.attr.startswith(OS_FAMILIES):
                found.append(f"{path.name}:{node.lineno}: os.{node.attr}")
    return found


def test_the_walk_reaches_the_pack():
    reached = {path.relative_to(ROOT).as_posix() for path in reachable(ROOT / "__init__.py")}
    assert {"__init__.py", "nodes/patch.py", "vc_attention/attention.py", "vc_attention/session.py"} <= reached


def test_every_relative_import_leads_somewhere():
    files = [*python_files("nodes"), *python_files("vc_attention"), ROOT / "__init__.py"]
    assert [line for path in files for line in all_imports(path)[2]] == []


@pytest.mark.parametrize("path", python_files("vc_attention"), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_library_never_knows_comfy(path):
    inside, outside = imports(path)
    assert not outside & COMFY
    assert not [p for p in inside if p.is_relative_to(ROOT / "nodes")]
    assert ROOT / "__init__.py" not in inside


@pytest.mark.parametrize("path", python_files("vc_attention/reference"), ids=lambda p: p.name)
def test_the_reference_depends_on_no_kernel(path):
    allowed = {ROOT / "vc_attention" / name for name in ("__init__.py", "config.py", "errors.py", "layout.py")}
    inside, _ = imports(path)
    assert not {p for p in inside if p.parent != ROOT / "vc_attention" / "reference"} - allowed


@pytest.mark.parametrize("name", ["config", "schedule", "errors"])
def test_plain_data_does_not_load_torch(name):
    path = ROOT / "vc_attention" / f"{name}.py"
    run_at_import = [node for node in tree(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in run_at_import if "torch" in ast.unparse(node).split()]


def test_imports_have_no_cycle():
    """Module-level imports only: a function may look back, a module may not."""
    edges = {}
    for path in (p for folder in ("nodes", "vc_attention") for p in python_files(folder)):
        top = ast.Module([n for n in tree(path).body if isinstance(n, ast.ImportFrom) and n.level], [])
        edges[path] = {
            target
            for node in top.body
            for alias in node.names
            if (target := module_file((*base_of(path, node), alias.name)) or module_file(base_of(path, node)))
        } - {path}
    done: set[Path] = set()

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        names = [p.relative_to(ROOT).as_posix() for p in (*trail, path)]
        assert path not in trail, f"import cycle: {' -> '.join(names)}"
        if path not in done:
            for target in edges.get(path, ()):
                visit(target, (*trail, path))
            done.add(path)

    for path in edges:
        visit(path, ())


def test_only_the_pack_itself_imports_the_nodes():
    for path in (*python_files("vc_attention"), ROOT / "install.py"):
        assert not [p for p in imports(path)[0] if p.is_relative_to(ROOT / "nodes")]


@pytest.mark.parametrize("path", sorted(reachable(ROOT / "__init__.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_reachable_from_a_node_runs_code(path):
    assert not imports(path)[1] & PROCESSES
    assert not forbidden_calls(path)


def test_the_checks_see_what_they_forbid(tmp_path):
    bad = ROOT / "vc_attention" / "build" / "toolchain.py"
    assert "subprocess" in imports(bad)[1], "toolchain.py is the one that starts compilers; point this test at it"
    assert bad not in reachable(ROOT / "__init__.py")
    sample = tmp_path / "sample.py"
    sample.write_text("import os\nos.system('x')\nos.execv('x', [])\neval('1')\nre.compile('x')\n")
    assert {line.split(": ")[1] for line in forbidden_calls(sample)} == {"eval", "os.system", "os.execv"}
