"""The table of kernels agrees with what is built, and a refusal says why. No GPU needed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vc_attention import dispatch, selftest
from vc_attention.build.units import UNITS
from vc_attention.config import PROFILES
from vc_attention.kernel_table import ATTENTION, MMA_ATTENTION


@pytest.mark.parametrize("spec", dispatch.KERNELS, ids=lambda spec: spec.kernel_name(True))
def test_every_kernel_is_built_and_fits(spec):
    assert {spec.kernel_name(True), spec.kernel_name(False)} <= set(UNITS[spec.unit].kernels)
    assert spec.shared_bytes(True) <= {"sm90": 227, "mma": 99}[spec.arch] * 1024  # what a thread block may have
    assert spec.misfits(selftest.numerics_of(spec), spec.head_dim) == []


def test_every_built_kernel_is_in_the_table():
    named = {spec.kernel_name(means) for spec in dispatch.KERNELS for means in (True, False)}
    built = {name for unit in UNITS.values() if unit.name.startswith("attention_") for name in unit.kernels}
    assert named == built


def test_the_parameters_are_as_large_as_the_struct():
    assert ATTENTION.size == 8 * 8 + 3 * 8 + 5 * 4 + 4  # padded to the alignment of its pointers
    assert MMA_ATTENTION.size == ATTENTION.size + 4 * 8


def test_our_profiles_have_kernels():
    for name in ("balanced", "quality"):
        assert any(not spec.misfits(PROFILES[name], 128) for spec in dispatch.KERNELS)


def test_misfits_name_parameter_and_value():
    spec = dispatch.KERNELS[0]
    numerics = dataclasses.replace(PROFILES["balanced"], probability="exact", row_sum="decoded")
    reasons = spec.misfits(numerics, 96)
    assert any("head_dim 128" in reason and "96" in reason for reason in reasons)
    assert any("probability expcast" in reason and "exact" in reason for reason in reasons)


def test_other_devices_are_refused_in_words():
    (reason,) = dispatch.select(torch.device("cpu"), PROFILES["balanced"], 128)
    assert "NVIDIA GPU" in reason and "cpu" in reason


def test_amd_is_not_taken_for_hopper(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    assert dispatch.select(torch.device("cuda", 0), PROFILES["balanced"], 128) == [
        "kernels need an NVIDIA GPU, this is PyTorch for AMD's"
    ]


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1), (13, 0)])
@pytest.mark.parametrize("name", PROFILES)
def test_every_gpu_and_profile_gets_a_kernel_or_reasons(monkeypatch, capability, name):
    """Asked before sampling, and never with an exception, whatever card it is."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Fake GPU")
    monkeypatch.setattr(dispatch.launch, "missing", lambda unit, index: None)
    monkeypatch.setattr(dispatch, "self_test", lambda spec, index: None)
    found = dispatch.select(torch.device("cuda", 0), PROFILES[name], 128)
    if isinstance(found, list):
        assert found and all(isinstance(reason, str) and reason for reason in found)
    else:
        assert capability in found.capabilities and not found.misfits(PROFILES[name], 128)
