"""Which attention kernel takes a call: one table, one question, one self-test. Decided before anything runs."""

from __future__ import annotations

import math
import re
import threading

import torch

from . import launch, ops, prepare
from .config import Numerics
from .errors import KernelUnavailable, ParameterError, VCAttentionError
from .kernel_table import ATTENTION, KERNELS, MMA_ATTENTION, KernelSpec

SELF_TEST_LIMIT = 5e-3  # bf16 output alone is 1.7e-3; a wrong tile, scale or mean is above 5e-2


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
        o.q_codes, o.q_scale, o.k_codes, o.k_scale, o.v_codes, o.v_scale, o.v_mean,
        o.q_micro, o.k_micro, o.k_bias, o.v_micro, o.seqlen_q, o.seqlen_k,
        score_scale(o.v_codes.shape[-2], numerics.hadamard), numerics.probability, numerics.p_scale,
        dtype == torch.float16,
    )  # fmt: skip
    return out.to(dtype)


def _attention_output(q_codes, *others):
    v_codes, seqlen_q, fp16 = others[3], others[10], others[-1]
    batch, heads, head_dim = q_codes.shape[0], q_codes.shape[1], v_codes.shape[-2]
    dtype = torch.float16 if fp16 else torch.bfloat16
    return torch.empty(batch, seqlen_q, heads, head_dim, dtype=dtype, device=q_codes.device).transpose(1, 2)


def _attention(*arguments):
    named = dict(zip(_ARGUMENTS, arguments, strict=True))
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    q_codes, v_codes, seqlen_q = named["q_codes"], named["v_codes"], named["seqlen_q"]
    for name, tensor in tensors.items():
        if not tensor.is_contiguous() or tensor.device != q_codes.device:
            raise ParameterError(
                name, f"contiguous on {q_codes.device}", (tensor.stride(), tensor.device), "prepare it"
            )
    batch, heads, head_dim = q_codes.shape[0], q_codes.shape[1], v_codes.shape[-2]
    if batch * heads > 65535:
        raise ParameterError("q", "at most 65535 heads of a batch", batch * heads, "split the batch")
    qk = "int8" if named["q_micro"] is None else "nvfp4"
    spec = _for_operands(q_codes.device, head_dim, qk, named["probability"], named["p_scale"])
    out = _attention_output(*arguments)
    params = ATTENTION.pack(
        **{name: named[name] for name in _ARGUMENTS[:7]},
        out=out, out_strides=out.stride()[:3], heads=heads, seqlen_q=seqlen_q, seqlen_k=named["seqlen_k"],
        score_scale=named["score_scale"], out_is_fp16=int(named["fp16"]),
    )  # fmt: skip
    if spec.arch == "mma":
        params = MMA_ATTENTION.pack(attention=params, **{name: named[name] for name in _ARGUMENTS[7:11]})
    means = named["v_mean"].numel() > 0
    kernel = launch.kernel(spec.unit, spec.kernel_name(means), q_codes.device.index)
    grid = (-(-seqlen_q // spec.block_m), batch * heads, 1)
    stream = torch.cuda.current_stream(q_codes.device).cuda_stream
    kernel.launch(grid, (spec.threads, 1, 1), spec.shared_bytes(means), stream, params)
    return out


def _for_operands(device: torch.device, head_dim: int, qk: str, probability: str, p_scale: str) -> KernelSpec:
    capability = torch.cuda.get_device_capability(device)
    for spec in KERNELS:
        kind = (spec.head_dim, spec.qk, spec.probability, spec.p_scale)
        if kind == (head_dim, qk, probability, p_scale) and capability in spec.capabilities:
            return spec
    raise KernelUnavailable([f"no kernel has head_dim {head_dim}, {qk}, {probability} and {p_scale} on {device}"])


# Functional like the ops of the preparation. An empty v_mean means that there are no means to restore; the tensors from
# q_micro to v_micro are those of NVFP4 operands.
_SCHEMA = (
    "attention(Tensor q_codes, Tensor q_scale, Tensor k_codes, Tensor k_scale, Tensor v_codes, Tensor v_scale, "
    "Tensor v_mean, Tensor? q_micro, Tensor? k_micro, Tensor? k_bias, Tensor? v_micro, int seqlen_q, int seqlen_k, "
    "float score_scale, str probability, str p_scale, bool fp16) -> Tensor"
)
_ARGUMENTS = tuple(re.findall(r"(\w+)[,)]", _SCHEMA))
ops.register(_SCHEMA, _attention, _attention_output)
