"""From a compiler's log to a cause that a person can act on."""

from __future__ import annotations

import re

_USE_NVRTC = "use --compiler nvrtc, which needs no C++ compiler"

# First match wins: pattern -> cause and remedy.
_CAUSES = {
    r"Cannot find compiler 'cl\.exe'|cl\.exe.*not found": f"cl.exe is not on PATH: {_USE_NVRTC}",
    r"unsupported GNU version|unsupported Microsoft Visual Studio|unsupported clang": (
        f"this CUDA does not know so new a C++ compiler: {_USE_NVRTC}"
    ),
    r"fopenmp|D9002|unrecognized command.line option": f"the C++ compiler does not know a flag: {_USE_NVRTC}",
    r"out of memory|bad_alloc|Killed|signal 9|0xC0000017": "memory ran out: set MAX_JOBS=1 and try again",
    r"Unsupported gpu architecture|invalid value for --gpu-architecture|not defined for option 'gpu-name'": (
        "this CUDA does not know the GPU: use a later one"
    ),
    r"No space left|disk full": "the disk is full",
    r"not supported on .target|requires .target": "the source uses an instruction that the target lacks",
    r"[Pp]ermission denied|Access is denied": "a file cannot be written or run: an antivirus or its rights forbid it",
    r"\): error|error:": "the source does not compile",
}


def cause(log: str) -> str:
    """One sentence: what went wrong and what to do."""
    return next((text for pattern, text in _CAUSES.items() if re.search(pattern, log)), "the compiler did not say why")


def exit_code(code: int) -> str:
    """An exit code as people search for it: -11 is a signal, 3221226505 is 0xC0000409."""
    if code < 0:
        return f"signal {-code}"
    return f"0x{code:08X}" if code > 0xFFFF else str(code)
