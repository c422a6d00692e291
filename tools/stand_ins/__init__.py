"""Small ComfyUI nodes for the demo and the tests, where encoders of several gigabytes have no place.

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


class _VAE:
    """Frames and latents of the sizes that a video VAE with 4 frames a latent gives; three channels carry colour."""

    def __init__(self, channels: int, pixels: int) -> None:
        self.channels, self.pixels = channels, pixels

    def encode(self, frames):
        """[T, H, W, 3] -> [1, channels, (T - 1) // 4 + 1, H / pixels, W / pixels]."""
        small = torch.nn.functional.avg_pool2d(frames[::4, ..., :3].movedim(-1, 1), self.pixels)
        latent = torch.zeros(small.shape[0], self.channels, *small.shape[2:])
        latent[:, :3] = small
        return latent.movedim(0, 1)[None]

    def decode(self, latent):
        """[1, channels, T, H, W] -> [1, 4 T - 3, H * pixels, W * pixels, 3]."""
        frames = latent[:, :3].sigmoid().repeat_interleave(4, 2)[:, :, 3:]
        for axis in (3, 4):
            frames = frames.repeat_interleave(self.pixels, axis)
        return frames.movedim(1, -1)


class StandInVAE:
    """A VAE of any channel count and pixels per latent pixel."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "make"
    RETURN_TYPES = ("VAE",)

    @classmethod
    def INPUT_TYPES(cls):
        number = {"default": 16, "min": 1, "max": 128}
        return {"required": {"channels": ("INT", number), "pixels": ("INT", number)}}

    def make(self, channels, pixels):
        return (_VAE(channels, pixels),)


NODES = (StandInTextEncoder, StandInLatent, StandInVAE)
NODE_CLASS_MAPPINGS = {node.__name__: node for node in NODES}
