"""What compute-sanitizer watches: every kind of preparation call, and every attention kernel of this GPU."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import cases, emulated, test_prepare, test_prepare_nvfp4
from vc_attention import dispatch, reference, selftest

SEEDS = range(12)
# (batch, heads, queries, keys): one ragged tile; ragged tiles on both sides, an odd number of them; more than the 32
# tiles that share an image of block means.
SHAPES = ((1, 1, 5, 77), (2, 1, 150, 700), (1, 1, 1, 4300))


def prepare() -> None:
    """Grouping and operands of random calls, compared with the reference."""
    for seed in SEEDS:
        test_prepare.check_case(cases.draw(seed))
        test_prepare_nvfp4.check_case(cases.draw(seed))


def attention(unit: str) -> None:
    """Every kernel of a unit, with and without means; a late key far above the others moves what sums refer to."""
    if unit in emulated.UNITS:
        emulated.install(pytest.MonkeyPatch(), unit)
    device, random = torch.device("cuda", torch.cuda.current_device()), torch.Generator().manual_seed(0)
    for spec in (spec for spec in dispatch.KERNELS if spec.unit == unit):
        numerics = selftest.numerics_of(spec)
        for batch, heads, seqlen_q, seqlen_k in SHAPES:
            lengths = (seqlen_q, seqlen_k, seqlen_k)
            q, k, v = (torch.randn(batch, heads, n, spec.head_dim, generator=random) for n in lengths)
            k[..., -9, :] = 20.0 * q[..., 0, :]
            for means in (True, False):
                made = reference.prepare(q, k, v, numerics, None, means, spec.block_n, spec.packed)
                out = dispatch.run(selftest.operands_on(device, made, means), numerics, torch.bfloat16)
                assert out.cpu().isfinite().all(), (spec, means, lengths)
