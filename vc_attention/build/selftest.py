"""Run the self-test kernel on one GPU: proof that a cubin of this pack loads, gets its parameters and computes.

`install.py` runs it in a child process, since a wrong driver can end a process rather than raise.
"""

from __future__ import annotations

import ctypes

from .. import driver, launch

COUNT, MULTIPLIER, OFFSET, SCALE = 1000, 40503, 2**33 + 7, 2.5

LAYOUT = launch.Params(out="ptr", count="i32", multiplier="u16", offset="u64", scale="f32")


def expected() -> list[int]:
    """What csrc/smxx/selftest.cu writes."""
    return [(i * MULTIPLIER + OFFSET + round(SCALE)) % 2**32 for i in range(COUNT)]


def run(device: int) -> str:
    """Launch on `device` and compare. Returns a sentence; raises VCAttentionError when anything is wrong."""
    kernel = launch.kernel("selftest", "vc_selftest", device)
    cuda = driver.load()
    out = (ctypes.c_uint32 * COUNT)()
    with cuda.current(cuda.context(device)):
        memory = ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ctypes.sizeof(out)))
        try:
            params = LAYOUT.pack(out=memory.value, count=COUNT, multiplier=MULTIPLIER, offset=OFFSET, scale=SCALE)
            kernel.launch((-(-COUNT // 128), 1, 1), (128, 1, 1), 0, 0, params)
            cuda.call("cuMemcpyDtoH_v2", out, memory, ctypes.c_size_t(ctypes.sizeof(out)))
        finally:
            cuda.call("cuMemFree_v2", memory)
    wrong = [index for index, (got, want) in enumerate(zip(out, expected(), strict=True)) if got != want]
    if wrong:
        raise launch.LaunchError(
            f"self-test on {kernel.gpu}: {len(wrong)} of {COUNT} values differ, the first at {wrong[0]}"
        )
    chosen = launch.launcher()
    why = f" ({chosen.reason})" if chosen.reason else ""
    return f"{kernel.gpu}: sm_{kernel.arch} kernels run, launched by {chosen.name}{why}"
