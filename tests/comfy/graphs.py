"""Prompts for the tests: small graphs on the tiny checkpoints, and what the server says about them."""

from __future__ import annotations

import itertools
import time

WAN = "wan2.1_t2v_tiny.safetensors"
HIGH, LOW = "wan2.2_t2v_high_noise_tiny.safetensors", "wan2.2_t2v_low_noise_tiny.safetensors"
HUNYUAN = "hunyuanvideo1.5_t2v_tiny.safetensors"
PATCH = {
    "bits": "auto", "grouping_window": 0.25, "clusters": 0, "refresh_interval": 4, "probability": "auto",
    "smoothing": "balanced", "min_tokens": 0, "blocks_left_alone": "", "backend": "reference", "enabled": True,
    "error_budget": "off",
}  # fmt: skip
_seeds = itertools.count(int(time.time()) % 100000 * 1000)  # no prompt is ever answered from the cache of another


class Graph:
    """An API-format prompt: add() puts a node in and returns its output 0 as a link."""

    def __init__(self) -> None:
        self.prompt: dict[str, dict] = {}

    def add(self, kind: str, **inputs) -> list:
        number = str(len(self.prompt) + 1)
        self.prompt[number] = {"class_type": kind, "inputs": inputs}
        return [number, 0]

    def model(self, name: str = WAN) -> list:
        return self.add("UNETLoader", unet_name=name, weight_dtype="default")

    def patch(self, model: list, **changes) -> list:
        return self.add("VCAttentionPatch", model=model, **{**PATCH, **changes})

    def probe(self, model: list) -> list:
        return self.add("ProbeModel", model=model)

    def text(self, text: str, tokens: int = 16, width: int = 4096) -> list:
        return self.add("StandInTextEncoder", text=text, tokens=tokens, width=width)

    def latent(self, frames: int = 2, height: int = 8, width: int = 8, channels: int = 16) -> list:
        """16 video tokens a frame by default."""
        return self.add("StandInLatent", channels=channels, frames=frames, height=height, width=width, batch_size=1)

    def sample(
        self, model: list, *, latent=None, steps=8, cfg=1.0, sampler="euler", negative_tokens=16, denoise=1.0, seed=None
    ) -> list:
        return self.add(
            "KSampler", model=model, positive=self.text("a fox"), negative=self.text("a dog", negative_tokens),
            latent_image=latent or self.latent(), seed=next(_seeds) if seed is None else seed, steps=steps, cfg=cfg,
            sampler_name=sampler, scheduler="simple", denoise=denoise,
        )  # fmt: skip

    def sample_part(self, model: list, start: int, end: int, *, steps: int, latent=None, sampler="euler"):
        first = start == 0
        return self.add(
            "KSamplerAdvanced", model=model, positive=self.text("a fox"), negative=self.text("a dog"),
            latent_image=latent or self.latent(), add_noise="enable" if first else "disable", noise_seed=next(_seeds),
            steps=steps, cfg=1.0, sampler_name=sampler, scheduler="simple", start_at_step=start, end_at_step=end,
            return_with_leftover_noise="disable" if end >= steps else "enable",
        )  # fmt: skip

    def save(self, latent: list) -> None:
        self.add("SaveLatent", samples=latent, filename_prefix="test")


def run(server, graph: Graph) -> tuple[dict, list[dict]]:
    """Run a graph; what the probes wrote down meanwhile, and the reports that reached the browser."""
    server.post("/vc_probe/reset", {})
    seen = len(server.events)
    server.run(graph.prompt)
    return server.get("/vc_probe"), reports(server, seen)


def load_latent(path):
    """The tensor of a file that SaveLatent wrote."""
    from safetensors.torch import load_file

    return load_file(path)["latent_tensor"]


def reports(server, since: int = 0) -> list[dict]:
    return [event.data for event in server.events[since:] if event.type == "vc_attention.report"]


def words(forwards: list[dict], layers: int = 2) -> str:
    """ "0G* 1r* ...": step index, action of every layer, * inside the window, for each call of the diffusion model."""
    letters = {"group": "G", "assign": "A", "reuse": "r", "plain": "p"}
    out = []
    for forward in forwards:
        assert len(forward["actions"]) == layers and len(set(forward["actions"])) == 1
        out.append(f"{forward['index']}{letters[forward['actions'][0]]}{'*' if forward['in_window'] else ''}")
    return " ".join(out)
