"""Train the tiny Wan on synthetic clips by flow matching:
`python -m tools.tiny_video.train_wan --autoencoder FILE --out FOLDER`.

Leaves tiny_wan.safetensors (bf16, averaged over the last steps), log.txt and pictures of clips, a row for every kind.
Clips are drawn and encoded while training goes on: a bank of latents for every length, whose oldest are replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from . import autoencoder, flow, wan
from .autoencoder import LATENT_CHANNELS, SPATIAL, TinyAutoencoder
from .scenes import KINDS, SIZE, draw, render
from .training import Clock, picture, set_rate
from .wan import TinyWan

LENGTHS = {5: 0.75, 16: 0.25}  # latent frames (17 and 61 frames) and how often they are trained on
WITHOUT_PROMPT = 0.1
AVERAGE = 0.999
SIGMAS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the held-out loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--autoencoder", type=Path, required=True, help="weights of the trained autoencoder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights, the log and the pictures")
    parser.add_argument("--seconds", type=float, default=400, help="how long to train")
    parser.add_argument("--steps", type=int, help="train this many steps instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=40960, help="video tokens in a step")
    parser.add_argument("--bank", type=int, default=768, help="latents of the shortest clips that are kept")
    parser.add_argument("--size", type=int, default=SIZE, help="side of the clips in pixels")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--resume", type=Path, help="weights to start from")
    train(parser.parse_args())


class Bank:
    """Latents of clips of one length, and their kinds."""

    def __init__(self, encoder: TinyAutoencoder, frames: int, count: int, side: int, generator: torch.Generator):
        self.encoder, self.frames, self.side, self.generator = encoder, frames, side, generator
        device = generator.device
        self.chunk = min(max(1, 80 // frames), count)
        shape = (count, LATENT_CHANNELS, frames, side // SPATIAL, side // SPATIAL)
        self.latents = torch.empty(shape, dtype=torch.bfloat16, device=device)
        self.kinds = torch.empty(count, dtype=torch.int64, device=device)
        self.oldest, self.owed = 0, 0.0
        while self.oldest + self.chunk < count:
            self.renew()
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """Replace the oldest clips."""
        scenes = draw(self.chunk, self.generator)
        window = slice((SIZE - self.side) // 2, (SIZE + self.side) // 2)
        video = render(scenes, 4 * self.frames - 3, window, window)
        places = (self.oldest + torch.arange(self.chunk, device=video.device)) % len(self.kinds)
        self.latents[places] = self.encoder.encode(video.to(self.encoder.mean.dtype)).bfloat16()
        self.kinds[places] = scenes.kind
        self.oldest = (self.oldest + self.chunk) % len(self.kinds)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` random clips; for 40 that are drawn one is replaced by a new one."""
        self.owed += count / 40
        while self.owed >= self.chunk:
            self.renew()
            self.owed -= self.chunk
        chosen = torch.randint(len(self.kinds), (count,), generator=self.generator, device=self.kinds.device)
        return self.latents[chosen].float(), self.kinds[chosen]


class Weights:
    """The model's weights in the type it computes with, in fp32 for the optimizer, and their running average."""

    def __init__(self, model: TinyWan, dtype: torch.dtype):
        self.exact = [parameter.detach().clone() for parameter in model.parameters()]
        self.average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.used = list(model.to(dtype).parameters())
        for exact in self.exact:
            exact.grad = torch.zeros_like(exact)
        self.optimizer = torch.optim.AdamW(
            self.exact, betas=(0.9, 0.98), weight_decay=0.01, fused=self.exact[0].is_cuda
        )

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """One step of the optimizer along the gradients that the model holds, which are dropped."""
        torch._foreach_copy_([exact.grad for exact in self.exact], [used.grad for used in self.used])
        torch.nn.utils.clip_grad_norm_(self.exact, 1.0)
        self.optimizer.step()
        torch._foreach_copy_(self.used, self.exact)
        torch._foreach_lerp_(list(self.average.values()), self.exact, 1 - decay)
        for used in self.used:
            used.grad = None


def train(options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    lengths = torch.Generator().manual_seed(options.seed)  # on the CPU: its choice must not wait for the GPU
    clock = Clock(options.out, options.seconds, options.steps)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    encoder = autoencoder.load(options.autoencoder, device).to(dtype)
    model = wan.load(options.resume) if options.resume else wan.initialise(TinyWan())
    weights = Weights(model.requires_grad_(True).train().to(device), dtype)
    clock.log(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {vars(options)}, {device}")
    banks = {}
    for length in LENGTHS:
        count = max(8, options.bank * min(LENGTHS) // length)
        banks[length] = Bank(encoder, length, count, options.size, generator)
        clock.log(f"bank of {count} clips of {length} latent frames")
    held_out = Bank(encoder, min(LENGTHS), 64, options.size, torch.Generator(device).manual_seed(options.seed + 1))
    context = flow.prompts(device).to(dtype)
    batches = {length: max(1, options.tokens // (length * (options.size // 16) ** 2)) for length in LENGTHS}
    networks = dict.fromkeys(LENGTHS, model)
    if device.type == "cuda":
        networks = _graphed(model, batches, banks, context)
    clock.log(f"clips in a step, by length: {batches}")
    losses = {}
    while True:
        set_rate(weights.optimizer, clock.rate(options.rate))
        length = _pick(lengths)
        loss = _step(networks[length], *banks[length].draw(batches[length]), context, generator)
        loss.backward()
        weights.update(min(AVERAGE, (clock.step + 1) / (clock.step + 10)))
        losses[length] = torch.lerp(losses.get(length, loss.detach()), loss.detach(), 0.02)
        clock.report(5, **{f"loss{length}": value for length, value in losses.items()})
        if not clock.tick():
            break
        if clock.save_due(60):
            _save(weights.average, held_out, context, options, clock)
    model = _save(weights.average, held_out, context, options, clock)
    _pictures(model, encoder, context, options)
    clock.log("done")


class _Sized(nn.Module):
    """The model for batches of one size."""

    def __init__(self, model: TinyWan):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, t: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.model(x, t, context)


def _graphed(model: TinyWan, batches: dict[int, int], banks: dict[int, Bank], context) -> dict[int, nn.Module]:
    """CUDA graphs of the model forwards and backwards, one a length: so small a model waits for launches otherwise."""
    networks = {}
    for length, batch in batches.items():
        # The graph writes its inputs here: a copy, not a part of the bank.
        x = banks[length].latents[:batch].to(context.dtype, copy=True)
        inputs = (x, torch.full((batch,), 500.0, device=x.device), context[:1].repeat(batch, 1, 1))
        networks[length] = torch.cuda.make_graphed_callables(_Sized(model), inputs)
    return networks


def _pick(generator: torch.Generator) -> int:
    """A length, by its share."""
    shares = torch.tensor(list(LENGTHS.values()))
    return list(LENGTHS)[torch.multinomial(shares, 1, generator=generator).item()]


def _step(model, latents, kinds, context, generator) -> torch.Tensor:
    """Loss of one batch: the velocity's squared error at noise levels as the sampler meets them."""
    device, count = latents.device, len(latents)
    kinds = kinds.where(torch.rand(count, generator=generator, device=device) >= WITHOUT_PROMPT, len(KINDS))
    # One level in each of `count` equal parts of the schedule: fewer accidents than independent ones.
    u = (torch.arange(count, device=device) + torch.rand(count, generator=generator, device=device)) / count
    sigma = flow.shifted(u).view(-1, 1, 1, 1, 1)
    noise = torch.randn(latents.shape, generator=generator, device=device)
    noisy = torch.lerp(latents, noise, sigma).to(context.dtype)
    velocity = model(noisy, 1000 * sigma.flatten(), context[kinds])
    return functional.mse_loss(velocity.float(), noise - latents)


@torch.no_grad()
def _save(average, held_out: Bank, context, options: argparse.Namespace, clock: Clock) -> TinyWan:
    """Save the averaged weights and measure what was saved on clips that training never saw."""
    metadata = {"seed": str(options.seed), "steps": str(clock.step), "shift": str(flow.SHIFT)}
    wan.save(average, options.out / wan.FILE, metadata)
    device = context.device
    model = wan.load(options.out / wan.FILE, device).to(context.dtype)
    generator = torch.Generator(device).manual_seed(options.seed)
    levels = []
    for sigma in SIGMAS:
        latents = held_out.latents.float()
        noise = torch.randn(latents.shape, generator=generator, device=device)
        t = torch.full((len(latents),), 1000 * sigma, device=device)
        velocity = model(torch.lerp(latents, noise, sigma).to(context.dtype), t, context[held_out.kinds])
        levels.append(f"{sigma}: {functional.mse_loss(velocity.float(), noise - latents):.4f}")
    clock.log("saved; held-out loss at sigma " + ", ".join(levels))
    return model


@torch.no_grad()
def _pictures(model: TinyWan, encoder: TinyAutoencoder, context, options: argparse.Namespace) -> None:
    """Clips of every kind, in both lengths, with and without the guidance away from no prompt."""
    generator = torch.Generator(context.device).manual_seed(options.seed)
    kinds, side = len(KINDS), options.size // SPATIAL
    for length in LENGTHS:
        noise = torch.randn(kinds, LATENT_CHANNELS, length, side, side, generator=generator, device=context.device)
        for cfg in (1.0, 2.0):
            latents = flow.sample(model, noise, context[:kinds], cfg=cfg, nothing=context[kinds:])
            picture(
                encoder.decode(latents.to(context.dtype)),
                options.out / f"clips_{4 * length - 3}_frames_cfg_{cfg:.0f}.png",
            )


if __name__ == "__main__":
    main()
