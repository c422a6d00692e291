"""What the web interface asks the server for."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ..vc_attention.errors import VCAttentionError
from .forecast import Unknown, forecast
from .model_file import ModelShape, shape_of

FORECAST = "/vc_attention/forecast"
# Loader's widget -> folder of its files.
FOLDERS = {"unet_name": "diffusion_models", "ckpt_name": "checkpoints", "model": "diffusion_models"}


def add_routes() -> None:
    """Answer POST /vc_attention/forecast, where there is a server."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is None or any(getattr(route, "path", None) == FORECAST for route in server.routes):
        return
    from aiohttp import web

    @server.routes.post(FORECAST)
    async def answer(request):
        asked = await request.json()
        # A thread of its own: the first question about a GPU tests its kernels.
        return web.json_response(await asyncio.to_thread(_answer, asked))


def _answer(asked: dict) -> dict:
    """{"prompt": API format, "nodes": [ids]} -> {id: forecast or {"unknown": why}}."""
    import comfy.model_management

    device = comfy.model_management.get_torch_device()
    answers = {}
    for node in asked["nodes"]:
        try:
            answers[node] = forecast(asked["prompt"], node, _shape, device)
        except Unknown as reason:
            answers[node] = {"unknown": str(reason)}
        except KeyError:  # a wire to a node that is not in the prompt
            answers[node] = {"unknown": "incomplete"}
        except VCAttentionError as problem:
            answers[node] = {"reason": str(problem), "tokens": None}
    return answers


def _shape(widget: str, name: str) -> ModelShape | None:
    import folder_paths

    path = folder_paths.get_full_path(FOLDERS[widget], name)
    return shape_of(Path(path), Path(path).stat().st_mtime) if path else None
