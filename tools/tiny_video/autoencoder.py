"""The tiny video autoencoder that ComfyUI's VAELoader knows (its tiny-autoencoder format), written for training.

Latents `[B, 16, T, H/8, W/8]`, one latent frame for every four frames, are Wan's: ComfyUI hands them to the decoder
times a fixed deviation plus a fixed mean per channel. Pictures are 0..1. The keys of the state are ComfyUI's; a test
compares both networks' outputs.

Weights are stored as E4M3: the widths are ComfyUI's, and at 16 bits this file alone would take 22 MB. Training ends
with weights that are rounded in every forward pass and get the gradient all the same, so that little is lost.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

FILE = "tiny_wan_vae.safetensors"
LATENT_CHANNELS = 16
SPATIAL, TEMPORAL = 8, 4
STORED = torch.float8_e4m3fn
# What ComfyUI's Wan21 latent format does to a latent on its way from the sampler to the decoder.
MEAN = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)  # fmt: skip
DEVIATION = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
)  # fmt: skip


def _stored(x: torch.Tensor | None) -> torch.Tensor | None:
    """The value that the file will hold, with the gradient of x."""
    return None if x is None else x + (x.to(STORED).to(x.dtype) - x).detach()


class Conv(nn.Conv2d):
    """A convolution that computes, once `rounds` is set, with its weights as they will be stored."""

    rounds = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.rounds:
            return super().forward(x)
        return self._conv_forward(x, _stored(self.weight), _stored(self.bias))


def _conv(inputs: int, outputs: int, stride: int = 1, bias: bool = True) -> Conv:
    return Conv(inputs, outputs, 3, padding=1, stride=stride, bias=bias)


class Memory(nn.Module):
    """A residual block that also sees its own input one frame ago."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        relu = nn.ReLU()
        self.conv = nn.Sequential(
            _conv(2 * inputs, outputs), relu, _conv(outputs, outputs), relu, _conv(outputs, outputs)
        )

    def forward(self, x: torch.Tensor, frames: int) -> torch.Tensor:
        video = x.unflatten(0, (-1, frames))
        past = functional.pad(video[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)).flatten(0, 1)
        return functional.relu(self.conv(torch.cat([x, past], 1)) + x)


class Pool(nn.Module):
    """`stride` frames into one."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv = Conv(channels * stride, channels, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.reshape(-1, self.stride * x.shape[1], *x.shape[2:]))


class Grow(nn.Module):
    """One frame into `stride`."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv = Conv(channels, channels * stride, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).reshape(-1, x.shape[1], *x.shape[2:])


class Squash(nn.Module):
    """Keeps latents within -3..3."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x / 3) * 3


def _encoder() -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, 64), nn.ReLU()]
    for stride in (2, 2, 1):
        layers += [Pool(64, stride), _conv(64, 64, stride=2, bias=False), *(Memory(64, 64) for _ in range(3))]
    return nn.Sequential(*layers, _conv(64, LATENT_CHANNELS))


def _decoder() -> nn.Sequential:
    layers: list[nn.Module] = [Squash(), _conv(LATENT_CHANNELS, 256), nn.ReLU()]
    for width, following, stride in ((256, 128, 1), (128, 64, 2), (64, 64, 2)):
        layers += [Memory(width, width) for _ in range(3)]
        layers += [nn.Upsample(scale_factor=2), Grow(width, stride), _conv(width, following, bias=False)]
    return nn.Sequential(*layers, nn.ReLU(), _conv(64, 3))


def _run(layers: nn.Sequential, video: torch.Tensor) -> torch.Tensor:
    """Frames first: `[B, C, T, H, W]` through layers that work on `[B * T, C, H, W]`."""
    batch, x = video.shape[0], video.movedim(2, 1).flatten(0, 1)
    x = x.contiguous(memory_format=torch.channels_last)
    for layer in layers:
        x = layer(x, x.shape[0] // batch) if isinstance(layer, Memory) else layer(x)
    return x.unflatten(0, (batch, -1)).movedim(1, 2)


class TinyAutoencoder(nn.Module):
    """`encode` and `decode` take and give what the diffusion model sees: latents of unit size."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = (m.to(memory_format=torch.channels_last) for m in (_encoder(), _decoder()))
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1, 1), persistent=False)

    def encode(self, video: torch.Tensor) -> torch.Tensor:
        """Video `[B, 3, F, H, W]` -> latents `[B, 16, ceil(F/4), H/8, W/8]`; the last frame fills up the last four."""
        missing = -video.shape[2] % TEMPORAL
        video = torch.cat([video, video[:, :, -1:].expand(-1, -1, missing, -1, -1)], 2)
        return (_run(self.encoder, video) - self.mean) / self.deviation

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents `[B, 16, T, h, w]` -> video `[B, 3, 4 T - 3, 8 h, 8 w]`."""
        return _run(self.decoder, latents * self.deviation + self.mean)[:, :, TEMPORAL - 1 :]


def round_weights(model: TinyAutoencoder) -> None:
    """Compute from now on with weights as they will be stored."""
    for layer in model.modules():
        if isinstance(layer, Conv):
            layer.rounds = True


def initialise(model: TinyAutoencoder) -> TinyAutoencoder:
    """Starting weights that keep the size of what passes through, with blocks that add little."""
    for layer in model.modules():
        if isinstance(layer, Conv):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    for layer in model.modules():
        if isinstance(layer, Memory):
            layer.conv[-1].weight.data *= 0.3
    return model


def save(model: TinyAutoencoder, path: Path, metadata: dict[str, str]) -> None:
    """The file that ComfyUI loads."""
    save_file({k: v.to(STORED).contiguous().cpu() for k, v in model.state_dict().items()}, str(path), metadata)


def load(path: Path, device: torch.device | str = "cpu") -> TinyAutoencoder:
    """The trained autoencoder, fp32, ready to encode and decode."""
    model = TinyAutoencoder()
    model.load_state_dict({key: value.float() for key, value in load_file(str(path)).items()})
    return model.requires_grad_(False).eval().to(device)
