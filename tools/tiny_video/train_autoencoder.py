"""Train the tiny autoencoder on synthetic clips: `python -m tools.tiny_video.train_autoencoder --out FOLDER`.

Leaves tiny_wan_vae.safetensors, log.txt and a picture: clips, and below each what comes back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import autoencoder
from .autoencoder import TinyAutoencoder
from .scenes import SIZE, Scenes, draw, render
from .training import Clock, picture, psnr, set_rate

PEAK_RATE = 5e-4
ROUND_FROM = 0.6  # of the training: weights as they will be stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights, the log and the pictures")
    parser.add_argument("--seconds", type=float, default=110, help="how long to train")
    parser.add_argument("--steps", type=int, help="train this many steps instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=12, help="clips in a step")
    parser.add_argument("--window", type=int, default=96, help="side of the square that is cut from the clips")
    parser.add_argument("--frames", type=int, default=13)
    parser.add_argument("--resume", type=Path, help="weights to start from")
    train(parser.parse_args())


def train(options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    windows = torch.Generator().manual_seed(options.seed)  # on the CPU: where to cut must not wait for the GPU
    model = autoencoder.initialise(TinyAutoencoder())
    if options.resume:
        model.load_state_dict(autoencoder.load(options.resume).state_dict())
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.0, fused=device.type == "cuda")
    clock = Clock(options.out, options.seconds, options.steps)
    held_out = draw(8, torch.Generator(device).manual_seed(options.seed + 1))
    clock.log(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {vars(options)}, {device}")
    while True:
        set_rate(optimizer, clock.rate(PEAK_RATE))
        if clock.progress >= ROUND_FROM:
            autoencoder.round_weights(model)
        video = _window(draw(options.batch, generator), options, windows)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            latents = model.encode(video)
            # A decoder that forgives a little noise forgives what a diffusion model leaves.
            amount = 0.1 * torch.rand(len(latents), 1, 1, 1, 1, generator=generator, device=device)
            noise = torch.randn(latents.shape, generator=generator, device=device)
            result = model.decode(latents + amount * noise)
        loss, error, size = _loss(result.float(), video, latents.float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        clock.report(5, error=error, size=size, psnr=psnr(result.detach(), video))
        if not clock.tick():
            break
        if clock.save_due(60):
            _finish(model, held_out, options, clock)
    _finish(model, held_out, options, clock)


def _window(scenes: Scenes, options: argparse.Namespace, generator: torch.Generator) -> torch.Tensor:
    """One random square of all clips."""
    room = SIZE - options.window + 1
    top, left = torch.randint(room, (2,), generator=generator).tolist()
    return render(scenes, options.frames, slice(top, top + options.window), slice(left, left + options.window))


def _loss(result: torch.Tensor, video: torch.Tensor, latents: torch.Tensor):
    """(loss, error of the picture, how far latents are from mean 0 and deviation 1 in every channel)."""
    difference = result - video
    edges = sum(difference.diff(dim=dim).abs().mean() for dim in (2, 3, 4))
    error = difference.abs().mean() + difference.square().mean() + 0.5 * edges
    deviation, mean = torch.std_mean(latents, dim=(0, 2, 3, 4))
    size = (mean.square() + (deviation - 1).square()).mean()
    return error + 0.02 * size, error.detach(), size.detach()


@torch.no_grad()
def _finish(model: TinyAutoencoder, held_out: Scenes, options: argparse.Namespace, clock: Clock) -> None:
    """Measure on whole clips that training never saw, save pictures and weights."""
    whole = options.window < SIZE and next(model.parameters()).is_cuda
    side = SIZE if whole else options.window
    video = render(held_out, 33 if whole else options.frames, slice(0, side), slice(0, side))
    latents = model.encode(video)
    result = model.decode(latents)
    rounded = psnr(model.decode(latents + 0.05 * torch.randn_like(latents)), video)
    deviation, mean = torch.std_mean(latents, dim=(0, 2, 3, 4))
    clock.log(f"held out: {psnr(result, video):.2f} dB, {rounded:.2f} dB with 5% noise on the latents")
    clock.log(
        f"latent means {mean.min():.2f}..{mean.max():.2f}, deviations {deviation.min():.2f}..{deviation.max():.2f}"
    )
    picture(torch.stack([video, result], 1).flatten(0, 1), options.out / "clips.png")
    metadata = {"seed": str(options.seed), "steps": str(clock.step), "window": str(options.window)}
    autoencoder.save(model, options.out / autoencoder.FILE, metadata)


if __name__ == "__main__":
    main()
