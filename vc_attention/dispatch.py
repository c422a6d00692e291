"""Which attention kernel takes a call: one table, one question, one self-test. Decided before anything runs."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import torch

from . import launch, ops, prepare
from .config import Numerics
from .errors import KernelUnavailable, ParameterError, VCAttentionError
from .params import Params

TILE = 128
ATTENTION = Params(  # AttentionParams of csrc/sm90/config.cuh
    q_codes="ptr", q_scale="ptr", k_codes="ptr", k_scale="ptr", v_codes="ptr", v_scale="ptr", v_mean="ptr", out="ptr",
    out_strides="i64[3]", heads="i32", seqlen_q="i32", seqlen_k="i32", score_scale="f32", out_is_fp16="i32",
)  # fmt: skip
SELF_TEST_LIMIT = 5e-3  # bf16 output alone is 1.7e-3; a wrong tile, scale or mean is above 5e-2


@dataclass(frozen=True)
class KernelSpec:
    """Kernels that differ in nothing but whether they restore block means.

    unit            row of build/units.py
    arch            folder of csrc/
    capabilities    compute capabilities of the GPUs that run them
    head_dim        64 or 128
    probability     `Numerics.probability` that they compute
    p_scale         `Numerics.p_scale` that they compute
    block_m         query rows of a thread block
    block_n         keys that share the reference of P: `block_n` of reference.attention
    threads         of a thread block
    stages          tiles of K and V in shared memory
    minimum_tokens  keys from which a complete call beats stock attention (docs/sm90-log.md)
    """

    unit: str
    arch: str
    capabilities: tuple[tuple[int, int], ...]
    head_dim: int
    probability: str
    p_scale: str
    block_m: int
    block_n: int
    threads: int
    stages: int
    minimum_tokens: int

    @property
    def units(self) -> tuple[str, ...]:
        """Units that a call or the self-test before the first one launches."""
        return (self.unit, "prepare", "group", *(("mma_selftest",) if self.probability == "nvfp4" else ()))

    def kernel_name(self, means: bool) -> str:
        """Name in the cubin."""
        words = ("vc_attention", self.arch, f"d{self.head_dim}", self.probability, self.p_scale)
        return "_".join((*words, "mean" if means else "plain"))

    def shared_bytes(self, means: bool) -> int:
        """Dynamic shared memory, as Config of csrc/sm90/config.cuh lays it out; a kernel traps when they disagree."""
        ones = 8 * TILE if self.probability == "expcast" else 0
        stage = 2 * TILE * self.head_dim + ones + 16 + 4 * 8
        stage += 4 * self.head_dim if self.probability == "u8" else 0
        restored = TILE * self.head_dim + 8 * 8 * (self.threads - 128) if means else 0
        return self.block_m * (self.head_dim + 4) + self.stages * stage + restored + 4 * self.head_dim + 3 * 8

    def misfits(self, numerics: Numerics, head_dim: int) -> list[str]:
        """Why this kernel does not compute these numerics, one sentence each."""
        wanted = {"head_dim": head_dim, "probability": numerics.probability, "p_scale": numerics.p_scale}
        reasons = [
            f"{self.unit} has {name} {getattr(self, name)}, the call {value}"
            for name, value in wanted.items()
            if getattr(self, name) != value
        ]
        if numerics.row_sum != "exact" and self.probability != "expcast":
            reasons.append(f"{self.unit} sums exponentials, row_sum={numerics.row_sum!r} has no kernel")
        return reasons


def _hopper(head_dim: int, probability: str, p_scale: str) -> KernelSpec:
    return KernelSpec(
        f"attention_sm90_{probability}", "sm90", ((9, 0),), head_dim, probability, p_scale,
        block_m=128, block_n=256, threads=384, stages=4,
        minimum_tokens=12288 if probability == "expcast" else 16384,
    )  # fmt: skip


KERNELS = tuple(
    _hopper(head_dim, probability, p_scale)
    for head_dim in (128, 64)
    for probability in ("expcast", "exact", "u8")
    for p_scale in (("tile",) if probability == "u8" else ("tile", "running"))
)

_lock = threading.Lock()
_tested: dict[tuple[KernelSpec, int], str | None] = {}


def select(
    device: torch.device, numerics: Numerics, head_dim: int, seqlen_k: int | None = None
) -> KernelSpec | list[str]:
    """The kernel for calls of this kind on `device`, or every reason why there is none, one sentence each.

    seqlen_k  number of keys, to refuse also what stock attention would finish sooner; None asks about any length

    The first question about a kernel runs its self-test on the device, once per process.
    """
    if device.type != "cuda":
        return [f"kernels need an NVIDIA GPU, the tensors are on {device.type}"]
    if torch.version.hip:  # there AMD's GPUs are "cuda" too, and some report the capability of a Hopper card
        return ["kernels need an NVIDIA GPU, this is PyTorch for AMD's"]
    index = torch.cuda.current_device() if device.index is None else device.index
    capability = torch.cuda.get_device_capability(index)
    able = [spec for spec in KERNELS if not spec.misfits(numerics, head_dim)] or KERNELS
    here = [spec for spec in able if capability in spec.capabilities]
    if not here:
        names = ["{}.{}".format(*c) for c in (capability, *sorted({c for spec in able for c in spec.capabilities}))]
        gpu = torch.cuda.get_device_name(index)
        return [f"{gpu} is {names[0]}, attention kernels of this kind are for {', '.join(names[1:])}"]
    spec = min(here, key=lambda spec: len(spec.misfits(numerics, head_dim)))
    reasons = prepare.unsupported(numerics) + spec.misfits(numerics, head_dim)
    if seqlen_k is not None and seqlen_k < spec.minimum_tokens:
        reasons.append(f"stock attention is faster below {spec.minimum_tokens} keys, the call has {seqlen_k}")
    reasons = reasons or [text for unit in spec.units if (text := launch.missing(unit, index))]
    if not reasons and (failure := self_test(spec, index)):
        reasons = [failure]
    return reasons or spec


def self_test(spec: KernelSpec, index: int) -> str | None:
    """Compares the kernels with the reference on device `index`, once per process; what is wrong, or None."""
    with _lock:
        if (spec, index) not in _tested:
            _tested[spec, index] = _run_self_test(spec, torch.device("cuda", index))
        return _tested[spec, index]


def _run_self_test(spec: KernelSpec, device: torch.device) -> str | None:
    from .selftest import error, mma_mismatch  # needs this module

    failed = f"the self-test of {spec.unit} failed on {device}: "
    remedy = "run install.py again; if that does not help, update the NVIDIA driver and report this"
    try:
        if spec.probability == "nvfp4" and (mismatch := mma_mismatch(device)):
            return f"{failed}{mismatch}; report this with the page that {launch.doctor_command()} prints"
        found = max(error(spec, device, means) for means in (True, False))
    except (VCAttentionError, RuntimeError) as problem:
        return f"{failed}{problem}; {remedy}"
    if not found < SELF_TEST_LIMIT:
        return f"{failed}it is off by {found:.2g}, {SELF_TEST_LIMIT} is allowed; {remedy}"
    return None


def score_scale(head_dim: int, hadamard: bool = True) -> float:
    """log2(e) / sqrt(D), and 1 / D for the gain of the transform: scores in log2 units per dot * q_scale * k_scale."""
    return math.log2(math.e) / math.sqrt(head_dim) / (head_dim if hadamard else 1)


def run(operands: prepare.Operands, numerics: Numerics, dtype: torch.dtype) -> torch.Tensor:
    """Attention of operands that `prepare` made; out `[B, H, Nq, D]` in `dtype`, a view of `[B, Nq, H, D]`."""
    o = operands
    out = torch.ops.vc_attention.attention(
        o.q_codes, o.q_scale, o.k_codes, o.k_scale, o.v_codes, o.v_scale, o.v_mean, o.seqlen_q, o.seqlen_k,
        score_scale(o.q_codes.shape[-1], numerics.hadamard), numerics.probability, numerics.p_scale,
        dtype == torch.float16,
    )  # fmt: skip
    return out.to(dtype)


def _attention_output(
    q_codes, q_scale, k_codes, k_scale, v_codes, v_scale, v_mean, seqlen_q, seqlen_k, scale, probability, p_scale, fp16
):
    batch, heads, head_dim = q_codes.shape[0], q_codes.shape[1], q_codes.shape[-1]
    dtype = torch.float16 if fp16 else torch.bfloat16
    return torch.empty(batch, seqlen_q, heads, head_dim, dtype=dtype, device=q_codes.device).transpose(1, 2)


def _attention(
    q_codes, q_scale, k_codes, k_scale, v_codes, v_scale, v_mean, seqlen_q, seqlen_k, scale, probability, p_scale, fp16
):
    tensors = dict(
        q_codes=q_codes, q_scale=q_scale, k_codes=k_codes, k_scale=k_scale, v_codes=v_codes, v_scale=v_scale,
        v_mean=v_mean,
    )  # fmt: skip
    for name, tensor in tensors.items():
        if not tensor.is_contiguous() or tensor.device != q_codes.device:
            raise ParameterError(
                name, f"contiguous on {q_codes.device}", (tensor.stride(), tensor.device), "prepare it"
            )
    batch, heads, head_dim = q_codes.shape[0], q_codes.shape[1], q_codes.shape[-1]
    if batch * heads > 65535:
        raise ParameterError("q", "at most 65535 heads of a batch", batch * heads, "split the batch")
    spec = _for_operands(q_codes.device, head_dim, probability, p_scale)
    out = _attention_output(*tensors.values(), seqlen_q, seqlen_k, scale, probability, p_scale, fp16)
    params = ATTENTION.pack(
        **tensors, out=out, out_strides=out.stride()[:3], heads=heads, seqlen_q=seqlen_q, seqlen_k=seqlen_k,
        score_scale=scale, out_is_fp16=int(fp16),
    )  # fmt: skip
    means = v_mean.numel() > 0
    kernel = launch.kernel(spec.unit, spec.kernel_name(means), q_codes.device.index)
    grid = (-(-seqlen_q // spec.block_m), batch * heads, 1)
    stream = torch.cuda.current_stream(q_codes.device).cuda_stream
    kernel.launch(grid, (spec.threads, 1, 1), spec.shared_bytes(means), stream, params)
    return out


def _for_operands(device: torch.device, head_dim: int, probability: str, p_scale: str) -> KernelSpec:
    capability = torch.cuda.get_device_capability(device)
    for spec in KERNELS:
        kind = (spec.head_dim, spec.probability, spec.p_scale)
        if kind == (head_dim, probability, p_scale) and capability in spec.capabilities:
            return spec
    raise KernelUnavailable([f"no kernel has head_dim {head_dim}, {probability} and {p_scale} on {device}"])


# Functional like the ops of the preparation. An empty v_mean means that there are no means to restore.
ops.register(
    "attention(Tensor q_codes, Tensor q_scale, Tensor k_codes, Tensor k_scale, Tensor v_codes, Tensor v_scale, "
    "Tensor v_mean, int seqlen_q, int seqlen_k, float score_scale, str probability, str p_scale, bool fp16) -> Tensor",
    _attention,
    _attention_output,
)
