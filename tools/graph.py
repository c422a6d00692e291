"""A run of tools/settings.py as a ComfyUI graph, described once. `to_api` prints it for POST /prompt,
tools/workflows.py prints it for the web interface."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tools.settings import ModelFile, Run

PATCH = "VCAttentionPatch"
WRAPPER_PATCH = "VCAttentionPatchWrapper"

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
    "error_budget": "balanced",
}
# Output slots of the node types used, in ComfyUI's order.
OUTPUTS = {
    "UNETLoader": ["MODEL"],
    "LoraLoaderModelOnly": ["MODEL"],
    PATCH: ["MODEL"],
    "ModelSamplingSD3": ["MODEL"],
    "CLIPLoader": ["CLIP"],
    "DualCLIPLoader": ["CLIP"],
    "CLIPTextEncode": ["CONDITIONING"],
    "CLIPVisionLoader": ["CLIP_VISION"],
    "CLIPVisionEncode": ["CLIP_VISION_OUTPUT"],
    "VAELoader": ["VAE"],
    "LoadImage": ["IMAGE", "MASK"],
    "ImageScale": ["IMAGE"],
    "EmptyHunyuanLatentVideo": ["LATENT"],
    "EmptyHunyuanVideo15Latent": ["LATENT"],
    "Wan22ImageToVideoLatent": ["LATENT"],
    "WanImageToVideo": ["CONDITIONING", "CONDITIONING", "LATENT"],
    "HunyuanVideo15ImageToVideo": ["CONDITIONING", "CONDITIONING", "LATENT"],
    "MiniMaxH3ImageToVideo": ["CONDITIONING", "LATENT"],
    "KSamplerAdvanced": ["LATENT"],
    "RandomNoise": ["NOISE"],
    "KSamplerSelect": ["SAMPLER"],
    "BasicScheduler": ["SIGMAS"],
    "BasicGuider": ["GUIDER"],
    "CFGGuider": ["GUIDER"],
    "SamplerCustomAdvanced": ["LATENT", "LATENT"],
    "VAEDecode": ["IMAGE"],
    "VAEDecodeAudio": ["AUDIO"],
    "CreateVideo": ["VIDEO"],
    "SaveVideo": [],
    "VCAttentionCompare": ["IMAGE", "IMAGE", "STRING"],
    "VCAttentionReport": ["LATENT", "IMAGE", "STRING"],
    "PrimitiveBoolean": ["BOOLEAN"],
    "WanVideoModelLoader": ["WANVIDEOMODEL"],
    "WanVideoLoraSelect": ["WANVIDLORA"],
    "WanVideoBlockSwap": ["BLOCKSWAPARGS"],
    WRAPPER_PATCH: ["WANVIDEOMODEL"],
    "LoadWanVideoT5TextEncoder": ["WANTEXTENCODER"],
    "WanVideoTextEncode": ["WANVIDEOTEXTEMBEDS"],
    "WanVideoVAELoader": ["WANVAE"],
    "WanVideoEncode": ["LATENT"],
    "WanVideoEmptyEmbeds": ["WANVIDIMAGE_EMBEDS"],
    "WanVideoSampler": ["LATENT", "LATENT"],
    "WanVideoDecode": ["IMAGE"],
    "StandInTextEncoder": ["CONDITIONING"],
    "StandInVAE": ["VAE"],
    "EmptyImage": ["IMAGE"],
}


class Link(NamedTuple):
    """An input that another node feeds. shown: what a widget shows that is fed so."""

    node: str
    slot: int = 0
    shown: object = None


@dataclass
class Node:
    """One node: `inputs` holds widget values, in the node's order, and Links."""

    type: str
    inputs: dict
    at: tuple[int, int]
    size: tuple[int, int] = (320, 130)
    title: str = ""
    files: list[ModelFile] = field(default_factory=list)


def build(run: Run) -> dict[str, Node]:
    """The nodes of a run, in the order of the data."""
    from tools.comparison import compared  # these make nodes, which are defined here
    from tools.families import BUILDERS

    nodes = BUILDERS[run.family](run)
    return compared(nodes) if run.compare else nodes


def patch_widgets(run: Run) -> dict:
    """The patch node's widgets in the node's order: its defaults, changed where the run says so. One switch turns every
    patch of the workflow on and off."""
    unknown = set(run.patch) - set(PATCH_DEFAULTS)
    if unknown:
        raise ValueError(f"run {run.title!r}: patch has {sorted(unknown)}, known are {sorted(PATCH_DEFAULTS)}")
    widgets = {**PATCH_DEFAULTS, **run.patch}
    return {**widgets, "enabled": Link("switch", shown=widgets["enabled"])}


def to_api(nodes: dict[str, Node]) -> dict:
    """The format of POST /prompt."""
    ids = numbered(nodes)

    def value(given):
        return [str(ids[given.node]), given.slot] if isinstance(given, Link) else given

    return {
        str(ids[key]): {
            "class_type": node.type,
            "inputs": {name: value(given) for name, given in node.inputs.items()},
            "_meta": {"title": node.title or node.type},
        }
        for key, node in nodes.items()
    }


def numbered(nodes: dict[str, Node]) -> dict[str, int]:
    """Node ids, counted from 1 in the graph's order."""
    return {key: number for number, key in enumerate(nodes, start=1)}


def bypassed(nodes: dict[str, Node]) -> dict[str, Link]:
    """What a graph without the patch has in place of patch nodes and of the report, which has nothing to tell then."""
    patches = {key: node.inputs["model"] for key, node in nodes.items() if node.type in (PATCH, WRAPPER_PATCH)}
    return {**patches, "report": nodes["report"].inputs["samples"]}


def without_patch(nodes: dict[str, Node]) -> dict[str, Node]:
    """The same graph with every patch node and the report taken out and their inputs joined to their outputs."""
    behind = bypassed(nodes)

    def through(given):
        return behind.get(given.node, given) if isinstance(given, Link) else given

    return {
        key: replace(node, inputs={name: through(given) for name, given in node.inputs.items()})
        for key, node in nodes.items()
        if key not in behind and key != "switch"
    }


def with_stand_ins(nodes: dict[str, Node]) -> dict[str, Node]:
    """The same graph with nodes of tools/stand_ins and of ComfyUI that need no file in place of text encoders, vision
    encoders, pictures, and of VAEs that no tiny checkpoint exists of."""
    dropped = {key for key, node in nodes.items() if node.type in ("CLIPLoader", "DualCLIPLoader", "CLIPVisionLoader")}
    dropped |= {key for key, node in nodes.items() if node.type == "CLIPVisionEncode"}

    def stand_in(node: Node) -> Node:
        if node.type == "CLIPTextEncode":
            width = 3584 if nodes[node.inputs["clip"].node].type == "DualCLIPLoader" else 4096
            inputs = {"text": node.inputs["text"], "tokens": 64, "width": width}
            return replace(node, type="StandInTextEncoder", inputs=inputs)
        if node.type == "LoadImage":
            inputs = {"width": 256, "height": 256, "batch_size": 1, "color": 0x4080C0}
            return replace(node, type="EmptyImage", inputs=inputs)
        if node.type == "VAELoader" and node.files[0].url:
            channels = 48 if "wan2.2" in node.files[0].name else 32
            return replace(node, type="StandInVAE", inputs={"channels": channels, "pixels": 16}, files=[])
        kept = {k: v for k, v in node.inputs.items() if not (isinstance(v, Link) and v.node in dropped)}
        return replace(node, inputs=kept)

    return {key: stand_in(node) for key, node in nodes.items() if key not in dropped}
