"""Synthetic clips: the same from the same seed, of every kind, moving, and the same through any window."""

import torch

from tools.tiny_video.scenes import KINDS, draw, render


def scenes(count=8, seed=3):
    drawn = draw(count, torch.Generator().manual_seed(seed))
    drawn.kind = torch.arange(count) % len(KINDS)
    return drawn


def test_a_seed_makes_a_clip():
    window = slice(100, 116)
    first, again = (render(scenes(), 2, window, window) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, render(scenes(seed=4), 2, window, window))


def test_every_kind_moves_and_stays_in_range():
    video = render(scenes(), 9, slice(0, 256, 4), slice(0, 256, 4))
    assert video.shape == (8, 3, 9, 64, 64)
    assert video.min() >= 0 and video.max() <= 1
    assert (video[:, :, 0] - video[:, :, -1]).abs().mean(dim=(1, 2, 3)).min() > 0.005


def test_a_window_is_a_part_of_the_whole():
    rows, columns = slice(64, 96), slice(128, 192)
    whole, part = render(scenes(2), 2), render(scenes(2), 2, rows, columns)
    assert torch.allclose(whole[:, :, :, rows, columns], part, atol=1e-5)
