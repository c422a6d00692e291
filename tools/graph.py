"""A run of tools/settings.py as a ComfyUI graph, described once. `to_api` prints it for POST /prompt,
tools/workflows.py prints it for the web interface."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tools.settings import ModelFile, Run

PATCH = "VCAttentionPatch"

# The patch node's widgets in the node's order with its defaults; a test compares them with the running node.
PATCH_DEFAULTS = {
    "bits": "auto",
    "grouping_window": 0.25,
    "clusters": 0,
    "refresh_interval": 4,
    "probability": "auto",
    "smoothing": "balanced",
    "min_tokens": 4096,
    "blocks_left_alone": "",
    "backend": "auto",
    "enabled": True,
}
# Output slots of the node types used, in ComfyUI's order.
OUTPUTS = {
    "UNETLoader": ["MODEL"],
    "LoraLoaderModelOnly": ["MODEL"],
    PATCH: ["MODEL"],
    "ModelSamplingSD3": ["MODEL"],
    "CLIPLoader": ["CLIP"],
    "CLIPTextEncode": ["CONDITIONING"],
    "VAELoader": ["VAE"],
    "EmptyHunyuanLatentVideo": ["LATENT"],
    "KSamplerAdvanced": ["LATENT"],
    "VAEDecode": ["IMAGE"],
    "CreateVideo": ["VIDEO"],
    "SaveVideo": [],
    "StandInTextEncoder": ["CONDITIONING"],
}
# Sockets; every other input is a widget. The web interface keeps one more value after a seed: what to do with it next.
SOCKETS = {
    "model": "MODEL",
    "clip": "CLIP",
    "vae": "VAE",
    "positive": "CONDITIONING",
    "negative": "CONDITIONING",
    "latent_image": "LATENT",
    "samples": "LATENT",
    "images": "IMAGE",
    "video": "VIDEO",
}


@dataclass
class Node:
    """One node: `inputs` holds widget values and, for sockets, the name of the node that feeds them (its slot 0)."""

    type: str
    inputs: dict
    at: tuple[int, int]
    size: tuple[int, int] = (320, 130)
    title: str = ""
    files: list[ModelFile] = field(default_factory=list)


def build(run: Run) -> dict[str, Node]:
    """The nodes of a text-to-video run with one sampler for each expert, in the order of the data."""
    latent = {"width": run.width, "height": run.height, "length": run.length, "batch_size": 1}
    clip = {"clip_name": run.text_encoder.name, "type": "wan", "device": "default"}
    wide, x = 420, -480
    nodes = {
        "clip": Node("CLIPLoader", clip, (x, 420), (wide, 130), files=[run.text_encoder]),
        "vae": Node("VAELoader", {"vae_name": run.vae.name}, (x, 610), (wide, 70), files=[run.vae]),
        "positive": Node("CLIPTextEncode", {"text": run.positive, "clip": "clip"}, (x, 0), (wide, 170), "Prompt"),
        "negative": Node("CLIPTextEncode", {"text": run.negative, "clip": "clip"}, (x, 230), (wide, 130), "Avoid"),
        "latent": Node("EmptyHunyuanLatentVideo", latent, (x, 740), (wide, 150), "Size and length"),
    }
    latent = "latent"
    for row in range(len(run.experts)):
        latent = _add_expert(nodes, run, row, latent)
    x = 1520
    nodes["decode"] = Node("VAEDecode", {"samples": latent, "vae": "vae"}, (x, 0), (240, 60))
    nodes["video"] = Node("CreateVideo", {"images": "decode", "fps": run.fps}, (x, 120), (240, 90))
    save = {"video": "video", "filename_prefix": "video/vc_attention", "format": "auto", "codec": "auto"}
    nodes["save"] = Node("SaveVideo", save, (x, 270), (420, 420))
    return nodes


def _add_expert(nodes: dict[str, Node], run: Run, row: int, latent: str) -> str:
    """Append one expert's chain loader -> (LoRA) -> patch -> shift -> sampler; the name of its sampler."""
    expert, y, first = run.experts[row], 500 * row, row == 0
    last = row == len(run.experts) - 1
    names = {kind: f"{kind} {expert.title}" for kind in ("unet", "lora", "patch", "shift", "sampler")}
    unet = {"unet_name": expert.model.name, "weight_dtype": "default"}
    nodes[names["unet"]] = Node("UNETLoader", unet, (0, y), (320, 90), f"Model, {expert.title}", [expert.model])
    model = names["unet"]
    if expert.lora:
        lora = {"model": model, "lora_name": expert.lora.name, "strength_model": 1.0}
        nodes[names["lora"]] = Node("LoraLoaderModelOnly", lora, (0, y + 150), (320, 90), "", [expert.lora])
        model = names["lora"]
    patch = {"model": model, **patch_widgets(run)}
    nodes[names["patch"]] = Node(PATCH, patch, (380, y), (320, 280), f"VC-Attention, {expert.title}")
    shift = {"model": names["patch"], "shift": run.shift}
    nodes[names["shift"]] = Node("ModelSamplingSD3", shift, (760, y), (260, 70))
    sampler = {
        "model": names["shift"],
        "positive": "positive",
        "negative": "negative",
        "latent_image": latent,
        "add_noise": "enable" if first else "disable",
        "noise_seed": run.seed if first else 0,
        "steps": run.steps,
        "cfg": run.cfg,
        "sampler_name": run.sampler,
        "scheduler": run.scheduler,
        "start_at_step": expert.start,
        "end_at_step": expert.end,
        "return_with_leftover_noise": "disable" if last else "enable",
    }
    nodes[names["sampler"]] = Node("KSamplerAdvanced", sampler, (1080, y), (380, 340), f"Sampler, {expert.title}")
    return names["sampler"]


def patch_widgets(run: Run) -> dict:
    """The patch node's widgets in the node's order: its defaults, changed where the run says so."""
    unknown = set(run.patch) - set(PATCH_DEFAULTS)
    if unknown:
        raise ValueError(f"run {run.title!r}: patch has {sorted(unknown)}, known are {sorted(PATCH_DEFAULTS)}")
    return {**PATCH_DEFAULTS, **run.patch}


def to_api(nodes: dict[str, Node]) -> dict:
    """The format of POST /prompt."""
    ids = numbered(nodes)

    def value(name, given):
        return [str(ids[given]), 0] if name in SOCKETS else given

    return {
        str(ids[key]): {
            "class_type": node.type,
            "inputs": {name: value(name, given) for name, given in node.inputs.items()},
            "_meta": {"title": node.title or node.type},
        }
        for key, node in nodes.items()
    }


def numbered(nodes: dict[str, Node]) -> dict[str, int]:
    """Node ids, counted from 1 in the graph's order."""
    return {key: number for number, key in enumerate(nodes, start=1)}


def without_patch(nodes: dict[str, Node]) -> dict[str, Node]:
    """The same graph with every patch node taken out and its model input joined to its output."""
    behind = {key: node.inputs["model"] for key, node in nodes.items() if node.type == PATCH}
    return {
        key: replace(node, inputs={name: _through(given, behind) for name, given in node.inputs.items()})
        for key, node in nodes.items()
        if key not in behind
    }


def with_stand_in_text(nodes: dict[str, Node]) -> dict[str, Node]:
    """The same graph with the text encoder replaced by the stand-in of tools/stand_ins, which needs no file."""

    def encoder(node: Node) -> Node:
        inputs = {"text": node.inputs["text"], "tokens": 64, "width": 4096}
        return replace(node, type="StandInTextEncoder", inputs=inputs)

    kept = {key: node for key, node in nodes.items() if node.type != "CLIPLoader"}
    return {key: encoder(node) if node.type == "CLIPTextEncode" else node for key, node in kept.items()}


def _through(given, behind: dict[str, str]):
    return behind.get(given, given) if isinstance(given, str) else given
