"""VC-Attention for ComfyUI. ComfyUI imports this folder as a node pack; importing it changes nothing."""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """What ComfyUI calls to get the pack's nodes."""
    from .nodes.extension import VCAttentionExtension

    return VCAttentionExtension()
