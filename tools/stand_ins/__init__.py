"""Two small ComfyUI nodes for the demo and the tests, where a text encoder of several gigabytes has no place.

Linked into the test server's custom_nodes; never part of what an artist installs.
"""

import hashlib

import torch


class StandInTextEncoder:
    """Conditioning that depends on the text alone: the same words give the same random embedding."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "encode"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "text": ("STRING", {"default": ""}),
                "tokens": ("INT", {"default": 64, "min": 1, "max": 4096}),
                "width": ("INT", {"default": 4096, "min": 1, "max": 8192}),
            }
        }

    def encode(self, text, tokens, width):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
        generator = torch.Generator().manual_seed(seed)
        embedding = torch.randn(1, tokens, width, generator=generator)
        pooled = torch.randn(1, 768, generator=generator)
        return ([[embedding, {"pooled_output": pooled}]],)


class StandInLatent:
    """An empty latent of any channel count and size, in latent pixels."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("LATENT",)

    @classmethod
    def INPUT_TYPES(cls):
        size = {"default": 16, "min": 1, "max": 512}
        return {
            "required": {
                "channels": ("INT", {"default": 16, "min": 1, "max": 128}),
                "frames": ("INT", {"default": 5, "min": 1, "max": 512}),
                "height": ("INT", size),
                "width": ("INT", size),
                "batch_size": ("INT", {"default": 1, "min": 1, "max": 8}),
            }
        }

    def make(self, channels, frames, height, width, batch_size):
        return ({"samples": torch.zeros(batch_size, channels, frames, height, width)},)


NODE_CLASS_MAPPINGS = {"StandInTextEncoder": StandInTextEncoder, "StandInLatent": StandInLatent}
