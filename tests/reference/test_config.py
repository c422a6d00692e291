"""Profiles are valid, frozen data; a bad value is named with its rule and remedy."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from vc_attention.config import CHOICES, PROFILES, Numerics, profile
from vc_attention.errors import KernelUnavailable, ParameterError, VCAttentionError


def test_the_default_is_the_balanced_profile():
    assert profile("balanced") == Numerics()


def test_every_field_and_choice_is_used_by_a_profile():
    for field in fields(Numerics):
        used = {getattr(numerics, field.name) for numerics in PROFILES.values()}
        if field.name in CHOICES:
            assert used == set(CHOICES[field.name]), field.name
        elif field.name not in ("clusters", "iterations"):  # the user's, and constant in all of them
            assert len(used) > 1, field.name


def test_numerics_are_frozen():
    with pytest.raises(FrozenInstanceError):
        profile("balanced").qk = "e4m3"


@pytest.mark.parametrize(
    "change, parameter",
    [
        ({"qk": "int4"}, "qk"),
        ({"clusters": 513}, "clusters"),
        ({"clusters": 2.5}, "clusters"),
        ({"clusters": True}, "clusters"),
        ({"iterations": 0}, "iterations"),
        ({"k_mean_blocks": -1}, "k_mean_blocks"),
        ({"k_mean_blocks": float("nan")}, "k_mean_blocks"),
        ({"hadamard": "no"}, "hadamard"),
        ({"smooth_k": None}, "smooth_k"),
        ({"pv": "int8"}, "probability"),
        ({"pv": "int8", "probability": "u8", "p_scale": "running"}, "p_scale"),
    ],
)
def test_a_bad_value_is_named(change, parameter):
    with pytest.raises(ParameterError) as caught:
        replace(Numerics(), **change)
    error = caught.value
    assert error.parameter == parameter
    assert error.rule in str(error) and repr(error.value) in str(error) and error.remedy in str(error)
    assert isinstance(error, ValueError) and isinstance(error, VCAttentionError)


def test_an_unknown_profile_lists_the_known_ones():
    with pytest.raises(ParameterError, match="balanced, quality"):
        profile("best")


def test_kernel_unavailable_says_why():
    error = KernelUnavailable(["head_dim is 80", "the GPU is sm_75"])
    assert error.reasons == ["head_dim is 80", "the GPU is sm_75"]
    assert "head_dim is 80; the GPU is sm_75" in str(error)
