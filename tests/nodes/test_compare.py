"""Compare's numbers against the libraries' own functions, and what it says where there is nothing to measure."""

import math

import numpy as np
import pytest
import torch
from vc_pack.nodes import drawing, metrics
from vc_pack.vc_attention.errors import ParameterError

kornia = pytest.importorskip("kornia.metrics")
skimage = pytest.importorskip("skimage.metrics")
CPU = torch.device("cpu")


def clips(frames=3, height=48, width=64, channels=3, noise=0.05):
    """A clip of soft shapes and the same clip with noise, fp32 in 0..1."""
    random = torch.Generator().manual_seed(5)
    coarse = torch.rand(frames, channels, 6, 8, generator=random)
    clip = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").movedim(1, -1).clamp(0, 1)
    other = clip + noise * torch.randn(clip.shape, generator=random)
    return clip, other.clamp(0, 1)


def as_type(clip, dtype):
    return (clip * 255).round().to(torch.uint8) if dtype == torch.uint8 else clip.to(dtype)


@pytest.fixture
def random_alexnet(tmp_path, monkeypatch):
    """AlexNet's weights where lpips looks for them: random ones, since the trained ones need a download."""
    torchvision = pytest.importorskip("torchvision.models")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    torch.save(torchvision.alexnet(weights=None).state_dict(), folder / "alexnet-owt-7be5be79.pth")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_psnr_and_ssim_are_the_libraries_own(dtype):
    a, b = (as_type(clip, dtype) for clip in clips())
    found = metrics.compare(a, b, CPU)
    one, other = (metrics.pixels(clip) for clip in (a, b))
    assert found.clip_psnr == pytest.approx(float(kornia.psnr(one, other, 1.0)), abs=1e-4)
    pictures = one.numpy().astype(np.float64), other.numpy().astype(np.float64)
    assert found.clip_psnr == pytest.approx(skimage.peak_signal_noise_ratio(*pictures, data_range=1.0), abs=1e-4)
    for index, pair in enumerate(zip(*pictures, strict=True)):
        assert found.psnr[index] == pytest.approx(skimage.peak_signal_noise_ratio(*pair, data_range=1.0), abs=1e-4)
        wang = dict(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, channel_axis=-1, data_range=1.0)
        assert found.ssim[index] == pytest.approx(skimage.structural_similarity(*pair, **wang), abs=2e-5)
        mine = [frame[index].movedim(-1, 0)[None] for frame in (one, other)]
        assert found.ssim[index] == pytest.approx(float(kornia.ssim(*mine, 11, eps=0.0, padding="valid").mean()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_lpips_is_the_librarys_own(random_alexnet, dtype):
    lpips = pytest.importorskip("lpips")
    a, b = (as_type(clip, dtype) for clip in clips(frames=2))
    found = metrics.compare(a, b, CPU)
    network = lpips.LPIPS(net="alex", verbose=False)
    for index in range(2):
        pair = [metrics.pixels(clip)[index].movedim(-1, 0)[None] for clip in (a, b)]
        with torch.no_grad():
            assert found.lpips[index] == pytest.approx(float(network(*pair, normalize=True)), rel=1e-5)
    assert "LPIPS" in found.text() and not found.missing


def test_identical_clips_say_so_instead_of_a_number():
    a, _ = clips()
    found = metrics.compare(a, a.clone(), CPU)
    assert found.identical and math.isinf(found.clip_psnr) and set(found.psnr) == {math.inf}
    assert found.ssim == pytest.approx([1.0] * 3)
    assert found.text() == "3 frames of 64 x 48\nidentical: not one pixel differs (PSNR infinite)"


def test_one_identical_frame_leaves_the_clips_psnr_finite():
    a, b = clips()
    b[0] = a[0]
    found = metrics.compare(a, b, CPU)
    assert math.isinf(found.psnr[0]) and found.worst_frame != 0
    assert found.clip_psnr == pytest.approx(float(kornia.psnr(a, b, 1.0)), abs=1e-4)


def test_different_lengths_and_sizes_are_refused_in_words():
    a, b = clips()
    for other, words in [(b[:2], "got '2 frames of 64 x 48 pixels'"), (b[:, :40], "got '3 frames of 64 x 40 pixels'")]:
        with pytest.raises(ParameterError, match="patched must be like stock, 3 frames of 64 x 48") as caught:
            metrics.check(a, other)
        assert words in str(caught.value) and "cut the longer one" in str(caught.value)


@pytest.mark.parametrize("bad", [torch.rand(4, 4, 3), torch.rand(0, 4, 4, 3), torch.zeros(1, 4, 4, 3).long()])
def test_what_is_no_clip_is_refused(bad):
    with pytest.raises(ParameterError, match="stock must be frames"):
        metrics.check(bad, bad)


def test_grey_transparent_and_broken_pixels():
    grey = torch.full((1, 16, 16, 1), 0.5)
    coloured = torch.full((1, 16, 16, 4), 0.5)
    coloured[..., 3] = 0.1
    assert metrics.compare(grey, coloured, CPU).identical
    broken = torch.full((1, 16, 16, 3), math.nan)
    assert metrics.compare(broken, torch.zeros_like(grey), CPU).identical  # a saved file shows black too


def test_missing_libraries_are_named_with_their_remedy(monkeypatch):
    for name in ("kornia.metrics", "lpips"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    a, b = clips()
    found = metrics.compare(a, b, CPU)
    assert "-m pip install kornia" in found.missing[0] and "-m pip install lpips" in found.missing[1]
    assert found.worst_frame == found.largest.index(max(found.largest)) and "largest difference" in found.text()


def test_without_alexnets_weights_nothing_is_downloaded(tmp_path, monkeypatch):
    pytest.importorskip("lpips")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    found = metrics.compare(*clips(), CPU)
    assert "alexnet-owt-7be5be79.pth is missing: with ComfyUI's Python, run import lpips" in found.missing[0]
    assert not found.lpips and list(tmp_path.iterdir()) == []


def test_frames_too_small_for_a_measure_are_told():
    found = metrics.compare(*clips(frames=1, height=8, width=8), CPU)
    assert [line.split(":")[0] for line in found.missing] == ["SSIM not measured", "LPIPS not measured"] and found.psnr


def test_the_ramp_keeps_order_and_ends():
    colours = drawing.ramp(torch.linspace(-0.5, 1.5, 50))
    lightness = colours @ torch.tensor([0.299, 0.587, 0.114])
    assert (lightness.diff() >= 0).all()
    assert [tuple((c * 255).round().int().tolist()) for c in colours[[0, -1]]] == [(16, 19, 26), (255, 251, 214)]
