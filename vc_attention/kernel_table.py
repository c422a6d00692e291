"""The table of attention kernels: what each computes, where it runs, what a launch of it takes."""

from __future__ import annotations

from dataclasses import dataclass

from .config import Numerics
from .params import Params

TILE = 128
ATTENTION = Params(  # AttentionParams of csrc/common/attention.cuh
    q_codes="ptr", q_scale="ptr", k_codes="ptr", k_scale="ptr", v_codes="ptr", v_scale="ptr", v_mean="ptr", out="ptr",
    out_strides="i64[3]", heads="i32", seqlen_q="i32", seqlen_k="i32", score_scale="f32", out_is_fp16="i32",
)  # fmt: skip
MMA_ATTENTION = Params(  # MmaAttentionParams of csrc/mma/config.cuh
    attention=ATTENTION, q_micro="ptr", k_micro="ptr", k_bias="ptr", v_micro="ptr"
)


@dataclass(frozen=True)
class KernelSpec:
    """Kernels that differ in nothing but whether they restore block means.

    unit            row of build/units.py
    arch            folder of csrc/
    capabilities    compute capabilities of the GPUs that run them
    head_dim        64 or 128
    qk              `Numerics.qk` that they compute, "nvfp4" with `smooth_q` "head"
    probability     `Numerics.probability` that they compute
    p_scale         `Numerics.p_scale` that they compute
    packed          whether from scores of 16 bits and keys of one scale a step: `packed` of reference.attention,
                    prepare.prepare and reference.prepare
    block_m         query rows of a thread block
    block_n         keys that share the reference of P, `block_n` of reference.attention, and an INT8 value scale,
                    `scale_n` of prepare.prepare and reference.prepare
    threads         of a thread block
    shared          bytes of dynamic shared memory; a kernel traps when it is given others
    shared_means    how many more where means are restored
    minimum_tokens  keys from which a complete call beats stock attention (docs/sm90-log.md, docs/mma-log.md)
    """

    unit: str
    arch: str
    capabilities: tuple[tuple[int, int], ...]
    head_dim: int
    qk: str
    probability: str
    p_scale: str
    packed: bool
    block_m: int
    block_n: int
    threads: int
    shared: int
    shared_means: int
    minimum_tokens: int

    @property
    def units(self) -> tuple[str, ...]:
        """Units that a call or the self-test before the first one launches."""
        return (self.unit, "prepare", "group", *(("mma_selftest",) if self.probability == "nvfp4" else ()))

    def kernel_name(self, means: bool) -> str:
        """Name in the cubin."""
        formats = self.unit.removeprefix(f"attention_{self.arch}_")
        words = ("vc_attention", self.arch, f"d{self.head_dim}", formats, self.p_scale)
        return "_".join((*words, "mean" if means else "plain"))

    def shared_bytes(self, means: bool) -> int:
        """Dynamic shared memory of a launch."""
        return self.shared + (self.shared_means if means else 0)

    def misfits(self, numerics: Numerics, head_dim: int) -> list[str]:
        """Why this kernel does not compute these numerics, one sentence each."""
        wanted = {
            "head_dim": head_dim,
            "qk": numerics.qk,
            "probability": numerics.probability,
            "p_scale": numerics.p_scale,
        }
        reasons = [
            f"{self.unit} has {name} {getattr(self, name)}, the call {value}"
            for name, value in wanted.items()
            if getattr(self, name) != value
        ]
        sums = {"nvfp4": ("decoded",), "expcast": ("exact", "decoded")}.get(self.probability, ("exact",))
        if numerics.row_sum not in sums:
            reasons.append(f"{self.unit} has {sums[0]} row sums, row_sum={numerics.row_sum!r} has no kernel")
        return reasons


def _sm90(head_dim: int, probability: str, p_scale: str) -> KernelSpec:
    """Shared memory as Config of csrc/sm90/config.cuh lays it out."""
    stages, tiles, consumers = 2, 2, 256
    tile = 2 * TILE * head_dim + 16  # codes of K and V, scales of K
    tile += {"expcast": 8 * TILE, "u8": 4 * head_dim}.get(probability, 0)  # rows of ones, scales of V
    return KernelSpec(
        f"attention_sm90_{probability}", "sm90", ((9, 0),), head_dim, "int8", probability, p_scale,
        packed=(probability, p_scale) == ("expcast", "tile"),
        block_m=TILE, block_n=tiles * TILE, threads=consumers + 128,
        shared=TILE * (head_dim + 4) + stages * (tiles * tile + 4 * 8) + 4 * head_dim + 3 * 8,
        shared_means=TILE * head_dim + 8 * 8 * consumers,
        minimum_tokens={"expcast": 12288, "u8": 16384}.get(probability, 24576),
    )  # fmt: skip


def _mma(head_dim: int, qk: str, probability: str) -> KernelSpec:
    """Shared memory as MmaConfig of csrc/mma/config.cuh lays it out."""
    four_bit_values, four_bit_scores = probability == "nvfp4", qk == "nvfp4"
    tiles = 1 if four_bit_values else 2  # of a step
    stages = 3 if four_bit_scores else 2 if four_bit_values else 1
    row, images = (head_dim // 2, 2) if four_bit_scores else (head_dim, 1)
    k_tile = (TILE + 8) * (row + head_dim // 16) + 4 * TILE if four_bit_scores else TILE * row
    v_tile = head_dim * {"nvfp4": TILE // 2 + TILE // 16, "u8": TILE + 4, "expcast": TILE}[probability]
    stage = _aligned(tiles * k_tile + 128) + tiles * v_tile + 32  # 128 for scales of K, 32 for barriers
    rows = 4 * (head_dim + TILE) + 2 * 16 + 8 * 256  # scales, two constants, row sums of every thread
    capabilities = {"nvfp4": ((12, 0),), "expcast": ((8, 9), (12, 0)), "u8": ((8, 0), (8, 6), (8, 9), (12, 0))}
    formats = f"int8_{probability}" if four_bit_values and not four_bit_scores else probability
    return KernelSpec(
        f"attention_mma_{formats}", "mma", capabilities[probability], head_dim, qk, probability,
        p_scale="running" if four_bit_values else "tile",
        packed=False,
        block_m=TILE, block_n=tiles * TILE, threads=256,
        shared=images * TILE * row + stages * stage + rows,
        shared_means=16 * 256,
        minimum_tokens=8192,
    )  # fmt: skip


def _aligned(size: int) -> int:
    return -(-size // 128) * 128


KERNELS = tuple(
    [
        _sm90(head_dim, probability, p_scale)
        for head_dim in (128, 64)
        for probability in ("expcast", "exact", "u8")
        for p_scale in (("tile",) if probability == "u8" else ("tile", "running"))
    ]
    + [
        _mma(head_dim, qk, probability)
        for head_dim in (128, 64)
        for qk, probability in (("int8", "expcast"), ("int8", "u8"), ("nvfp4", "nvfp4"), ("int8", "nvfp4"))
    ]
)
