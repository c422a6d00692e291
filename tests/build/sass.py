"""What a unit is compiled to: instructions, loops and resources of its kernels."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vc_attention.build import ptxas
from vc_attention.build.tasks import Task
from vc_attention.build.units import UNITS

_TENSOR = re.compile(r"\b[IQO]MMA")
_PADDING = re.compile(r"NOP|@!UPT |@!PT ")  # does nothing: distance that the hardware wants between products


@dataclass(frozen=True)
class Kernel:
    """Instructions in order, and what ptxas says the kernel takes."""

    addresses: list[int]
    texts: list[str]
    resources: dict[str, int]

    @property
    def opcodes(self) -> list[str]:
        return [_opcode(text) for text in self.texts]

    def main_loop(self) -> tuple[int, int]:
        """First and last instruction of the smallest loop with nearly all products of scores and values."""
        places = [i for i, text in enumerate(self.texts) if _TENSOR.search(text)]
        loops = [(target, i) for i in range(len(self.texts)) if (target := self._target(i)) is not None and target < i]
        whole = [
            (first, last)
            for first, last in loops
            if sum(first <= i <= last for i in places) >= 0.9 * len(places)
            and not any(text.startswith(("EXIT", "RET")) for text in self.texts[first:last])
        ]
        return min(whole, key=lambda loop: loop[1] - loop[0])

    def executed(self) -> Counter[str]:
        """Opcodes of a warp's shortest path through the main loop, without what a forward branch usually skips.

        Skipped are the last step's mask, rescaling, and bulk copies, which one thread of the block makes; what every
        thread copies itself is not.
        """
        first, last = self.main_loop()
        distance: dict[int, int] = {first: 0}
        before: dict[int, int] = {}
        for i in range(first, last + 1):
            if i not in distance:
                continue
            target, text = self._target(i), self.texts[i]
            after = [] if target is not None and not text.startswith("@") else [i + 1]
            if target is not None and i < target <= last and not any("LDGSTS" in t for t in self.texts[i:target]):
                after.append(target)
            for j in after:
                length = distance[i] + (not _PADDING.match(text))
                if length < distance.get(j, 1 << 30):
                    distance[j], before[j] = length, i
        way, i = [], last
        while i is not None:
            way.append(i)
            i = before.get(i)
        return Counter(_opcode(self.texts[i]).split(".")[0] for i in way if not _PADDING.match(self.texts[i]))

    def _target(self, i: int) -> int | None:
        match = re.search(r"\bBRA(?:\.\w+)* .*?(0x[0-9a-f]+)", self.texts[i])
        return self.addresses.index(int(match[1], 16)) if match and int(match[1], 16) in self.addresses else None


def _opcode(text: str) -> str:
    return re.sub(r"^@!?U?P\w+ +", "", text).split()[0]


def kernels(unit: str, arch: str, compiler, disassembler: str, folder: Path) -> dict[str, Kernel]:
    """{name: Kernel} of `unit` for sm_`arch`; the cubin is left in `folder`."""
    outcomes = []
    compiler.compile([Task(UNITS[unit], arch)], 1, outcomes.append)
    assert outcomes[0].cubin is not None, outcomes[0].log[-2000:]
    file = folder / f"{unit}-{arch}.cubin"
    file.write_bytes(outcomes[0].cubin)
    resources, _ = ptxas.parse(outcomes[0].log)
    text = subprocess.run([disassembler, "--dump-sass", file], capture_output=True, text=True, check=True).stdout
    found: dict[str, Kernel] = {}
    for line in text.splitlines():
        if "Function :" in line:
            name = line.split()[-1]
            found[name] = Kernel([], [], resources[name])
        elif match := re.match(r"\s+/\*([0-9a-f]+)\*/\s+(.*?)\s*;", line):
            found[name].addresses.append(int(match[1], 16))
            found[name].texts.append(match[2])
    return found
