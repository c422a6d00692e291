"""Check everything: lint, C++ formatting, generated files, and every test, in an environment of its own.

    python tools/test.py [pytest arguments]

Arguments go to pytest: `-m "not slow"`, `tests/reference`, `-k hadamard`, ... GPU tests run where there is a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import environment  # noqa: E402

CUDA_SOURCES = ("*.cu", "*.cuh", "*.h", "*.cpp")


def main() -> int:
    environment.run_inside(__file__)
    sources = sorted(str(path) for pattern in CUDA_SOURCES for path in (environment.ROOT / "csrc").rglob(pattern))
    checks = {
        "ruff check": [sys.executable, "-m", "ruff", "check", "."],
        "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
        "clang-format": [_beside("clang-format"), "--dry-run", "--Werror", *sources],
        "workflows": [sys.executable, "tools/workflows.py", "--check"],
        "pytest": [sys.executable, "-m", "pytest", *sys.argv[1:]],
    }
    failed = []
    for name, command in checks.items():
        started = time.monotonic()
        print(f"== {name}", flush=True)
        if subprocess.run(command, cwd=environment.ROOT).returncode != 0:
            failed.append(name)
        print(f"== {name}: {'FAILED' if name in failed else 'ok'} in {time.monotonic() - started:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return len(failed)


def _beside(program: str) -> str:
    """A program of the environment."""
    return str(Path(sys.executable).parent / (program + (".exe" if os.name == "nt" else "")))


if __name__ == "__main__":
    sys.exit(main())
