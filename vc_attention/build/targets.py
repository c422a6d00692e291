"""GPU targets: which one a GPU runs, and which toolkit can make it.

A target is written as nvcc writes it: "80", "90a". Cubins of a plain target run on GPUs of the same major and the same
or a later minor capability (86 runs what was built for 80); cubins of an `a` target run on exactly that capability.
"""

from __future__ import annotations

import re

# First toolkit whose ptxas knows the target. 103 and 121 came one release after the rest of Blackwell.
TOOLKIT_NEEDED = {
    "80": (11, 0),
    "89": (11, 8),
    "90a": (12, 0),
    "100a": (12, 8),
    "103a": (12, 9),
    "120a": (12, 8),
    "121a": (12, 9),
}

ANY_ARCH = tuple(TOOLKIT_NEEDED)


def capability(target: str) -> tuple[int, int]:
    """ "120a" -> (12, 0)."""
    digits = target.rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def runs_on(target: str, gpu: tuple[int, int]) -> bool:
    """Whether a cubin of `target` runs on a GPU of capability `gpu`."""
    major, minor = capability(target)
    if target.endswith("a"):
        return (major, minor) == gpu
    return major == gpu[0] and minor <= gpu[1]


def best(targets: tuple[str, ...], gpu: tuple[int, int]) -> str | None:
    """The most specific of `targets` that runs on `gpu`, or None."""
    fitting = [target for target in targets if runs_on(target, gpu)]
    return max(fitting, key=lambda target: (capability(target), target), default=None)


def parse(text: str) -> list[tuple[int, int]]:
    """An arch list as people write it ("90a,120a", "8.9;12.0", "12.0+PTX", "sm_120a") -> capabilities, once each.

    The letter is ignored: which kernel needs an `a` target is the kernel's business, not the user's.

    Raises ValueError naming the entry that is not an arch.
    """
    found: list[tuple[int, int]] = []
    for entry in re.split(r"[;,\s]+", text.strip()):
        if not entry:
            continue
        match = re.fullmatch(r"(?:sm_|compute_)?(?:(\d{1,2})\.(\d)|(\d{1,2})(\d))[af]?(?:\+PTX)?", entry, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"arch: '{entry}' is not a GPU target; write for example 89, 8.9, 90a or 12.0, separated by commas"
            )
        gpu = (int(match[1] or match[3]), int(match[2] or match[4]))
        if gpu not in found:
            found.append(gpu)
    return found


def refusal(target: str, toolkit: tuple[int, int]) -> str | None:
    """Why `toolkit` (major, minor) cannot compile `target`, or None when it can."""
    needed = TOOLKIT_NEEDED[target]
    if toolkit >= needed:
        return None
    return f"sm_{target} needs CUDA {needed[0]}.{needed[1]} or later, this is {toolkit[0]}.{toolkit[1]}"
