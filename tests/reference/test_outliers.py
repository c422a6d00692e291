"""What *balanced* costs where single keys or values are far larger than all others, as normalised models have none."""

from __future__ import annotations

import pytest
import torch

from tests.reference.fidelity import exact_attention, relative_error
from vc_attention import reference
from vc_attention.config import PROFILES
from vc_attention.reference import values

BALANCED = PROFILES["balanced"]
KEYS = 2048


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, n, 128, generator=random) for n in (256, KEYS, KEYS))
    return 3.0 * q, k, v


def error(q, k, v, packed: bool) -> float:
    """Relative L2 error in percent, as the Hopper kernel tiles the keys."""
    operands = reference.prepare(q, k, v, BALANCED, None, True, 256, packed)
    out = reference.attention(operands, BALANCED, 256, packed=packed)
    return float(relative_error(out, exact_attention(q, k, v)).mean())


@pytest.mark.parametrize(("size", "most"), [(1.0, 1.15), (3.0, 1.6), (10.0, 3.0)])
def test_a_large_key_in_every_step(size, most):
    """Packed scores have one key scale a step: a key that nobody asks for takes resolution from 255 others."""
    q, k, v = inputs()
    away = torch.nn.functional.normalize(q[0, 0, 0], dim=0)
    q -= (q @ away)[..., None] * away + 0.5 * away
    k[..., 77::256, :] += size * 128**0.5 * away
    assert error(q, k, v, True) < most * error(q, k, v, False)


@pytest.mark.parametrize(("size", "most"), [(1.0, 1.03), (30.0, 1.05), (100.0, 1.25), (300.0, 2.5)])
def test_small_values_beside_a_large_one(size, most, monkeypatch):
    """A channel's values keep E4M3's three bits down to 1/144 of its largest with 2.25, to 1/28,672 with 448."""
    q, k, v = inputs()
    q[..., 0] = q[..., 0].abs()
    k[..., 77, :] = 0.0
    k[..., 77, 0] = -60.0  # so that no row finds the large values
    v[..., 77, :] *= size
    found = error(q, k, v, False)
    monkeypatch.setattr(values, "value_max", lambda *_: 448.0)
    assert found < most * error(q, k, v, False)
