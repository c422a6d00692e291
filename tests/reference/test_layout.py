"""Tile images against the sentences of csrc/README.md, byte by byte."""

import pytest
import torch

from vc_attention import layout, reference
from vc_attention.config import PROFILES, Action
from vc_attention.reference.scores import k_group_of_key


def random_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("keys", [4, 8])
def test_key_slots(keys):
    slots = layout.key_slots(lane_keys=keys).tolist()
    for g in range(32 // keys):
        for i in range(keys // 2):
            for t in range(4):
                for e in range(2):
                    assert slots[4 * keys * g + 8 * i + 2 * t + e] == 4 * keys * g + keys * t + 2 * i + e


@pytest.mark.parametrize("name", ["balanced", "int8-nvfp4"])
def test_scale_groups_of_keys_are_those_of_image_rows(name):
    p, numerics = torch.arange(128), PROFILES[name]
    assert torch.equal(k_group_of_key(numerics, None)[layout.key_slots(lane_keys=numerics.lane_keys)], (p >> 1) & 3)


@pytest.mark.parametrize("width", [32, 64, 128])
def test_swizzle(width):
    rows = random_bytes(2, 32, width)
    moved = layout.swizzle(rows)
    for r in range(32):
        for c in range(width // 16):
            to = c ^ {128: r & 7, 64: (r >> 1) & 3, 32: (r >> 2) & 1}[width]
            assert torch.equal(moved[:, r, 16 * to : 16 * to + 16], rows[:, r, 16 * c : 16 * c + 16])
    assert torch.equal(layout.swizzle(moved), rows)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seqlen", [1, 127, 128, 300])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_images_invert_and_pad_with_zeros(name, seqlen, head_dim):
    codes = random_bytes(1, 2, seqlen, head_dim) | 1
    image = getattr(layout, f"{name}_image")(codes)
    tile = (head_dim, 128) if name == "v" else (128, head_dim)
    assert image.shape == (1, 2, -(-seqlen // 128), *tile)
    assert torch.equal(getattr(layout, f"{name}_codes")(image, seqlen), codes)
    assert (image != 0).sum() == codes.numel()


def test_k_and_v_images_place_single_keys():
    key, channel = 200, 37  # tile 1, key 72 of it
    codes = torch.zeros(1, 1, 256, 128, dtype=torch.uint8)
    codes[0, 0, key, channel] = 9
    row = layout.key_slots().tolist().index(72)
    k = layout.swizzle(layout.k_image(codes))
    assert k[0, 0, 1, row, channel] == 9
    v = layout.swizzle(layout.v_image(codes))
    assert v[0, 0, 1, channel, 72] == 9


@pytest.mark.parametrize("name", ["balanced", "quality"])
def test_images_of_operands_have_the_kernels_shapes(name):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 200, 64, generator=generator)
    k, v = torch.randn(2, 1, 2, 300, 64, generator=generator)
    perm = reference.group(v, PROFILES[name], Action.GROUP).perm
    operands = reference.prepare(q, k, v, PROFILES[name], perm, means=True)
    images = layout.images(operands)
    shapes = {key: tuple(x.shape) for key, x in images.items()}
    assert shapes == {
        "q_codes": (1, 2, 2, 128, 64),
        "q_scale": (1, 2, 256),
        "k_codes": (1, 2, 3, 128, 64),
        "k_scale": (1, 2, 3, 4),
        "v_codes": (1, 2, 3, 64, 128),
        "v_scale": (1, 2, 64) if name == "balanced" else (1, 2, 3, 64),
        "v_mean": (1, 2, 1, 64, 32),
    }
    assert images["q_scale"][..., 200:].eq(0).all()


def test_images_of_four_bits_have_the_kernels_shapes_and_padding():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 200, 64, generator=generator)
    k, v = torch.randn(2, 1, 2, 300, 64, generator=generator)
    operands = reference.prepare(q, k, v, PROFILES["4bit"], None, means=True)
    images = layout.images(operands)
    shapes = {key: tuple(x.shape) for key, x in images.items()}
    assert shapes == {
        "q_codes": (1, 2, 2, 2, 128, 32),
        "q_micro": (1, 2, 2, 2, 128, 4),
        "q_scale": (1, 2, 256),
        "k_codes": (1, 2, 3, 136, 32),
        "k_micro": (1, 2, 3, 136, 4),
        "k_scale": (1, 2, 3, 4),
        "k_bias": (1, 2, 3, 128),
        "v_codes": (1, 2, 3, 64, 64),
        "v_micro": (1, 2, 3, 64, 8),
        "v_scale": (1, 2, 64),
        "v_mean": (1, 2, 1, 64, 32),
    }
    for name in ("q_codes", "q_micro"):
        assert images[name][:, :, 1, :, 200 - 128 :].eq(0).all() and images[name][:, :, 1, 0, :72].any()
    past = layout.key_slots(lane_keys=8) >= 300 - 256
    for name in ("k_codes", "k_micro", "k_bias"):
        assert images[name][:, :, 2, :128][:, :, past].eq(0).all() and images[name][:, :, 2, :128].any()
    assert images["v_micro"][:, :, 2, :, 3:].eq(0).all()


def test_nibbles_of_k_and_v_lie_where_the_text_says():
    operands = reference.prepare(
        *(torch.randn(1, 1, 256, 128, generator=torch.Generator().manual_seed(i)) for i in range(3)),
        PROFILES["4bit"], None, means=True,
    )  # fmt: skip
    images, slots = layout.images(operands), layout.key_slots(lane_keys=8).tolist()
    k, v = layout.swizzle(images["k_codes"])[0, 0, 1], layout.swizzle(images["v_codes"])[0, 0, 1]
    for row, channel in ((0, 0), (37, 63), (127, 127)):
        code = operands.k_codes[0, 0, 128 + slots[row], channel]
        assert k[row, channel // 2] >> 4 * (channel % 2) & 15 == code
        assert v[channel, row // 2] >> 4 * (row % 2) & 15 == operands.v_codes[0, 0, 128 + row, channel]
        assert images["v_micro"][0, 0, 1, channel, row // 16] == operands.v_micro[0, 0, channel, 8 + row // 16]
    for row in range(128, 136):
        assert torch.equal(k[row] & 15, operands.k_mean_codes[0, 0, 1, row % 2, 0::2])
