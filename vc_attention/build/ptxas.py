"""What ptxas says about a cubin: registers, stack, spills, and its warnings about serialized tensor-core code."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_LOCAL = re.compile(r"(\d+) bytes lmem")
_WARNING = re.compile(r"\(C75\d\d\)")


def parse(log: str) -> tuple[dict[str, dict[str, int]], list[str]]:
    """A `-v` log -> ({kernel: {registers, stack, spill_stores, spill_loads, local}}, [C75xx lines])."""
    kernels: dict[str, dict[str, int]] = {}
    warnings: list[str] = []
    entry = function = None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = function = match[1]
            kernels[entry] = {"registers": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0, "local": 0}
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif entry and (match := _STACK.search(line)):
            # Functions that are called, not inlined, report apart: their stack counts for the kernel just the same.
            for key, value in zip(("stack", "spill_stores", "spill_loads"), match.groups(), strict=True):
                kernels[entry][key] += int(value)
        elif function in kernels and (match := _USED.search(line)):
            kernels[function]["registers"] = int(match[1])
            kernels[function]["local"] = int(local[1]) if (local := _LOCAL.search(line)) else 0
        if _WARNING.search(line):
            warnings.append(line.strip())
    return kernels, warnings
