"""What differs between the ComfyUI versions that the pack runs on."""

from __future__ import annotations

import contextlib
import inspect
import sys


def accepted(target, **arguments):
    """Call `target` with those of `arguments` that it knows.

    ComfyUI's schema classes gain parameters over time (0.3.75 has no `advanced`, no `search_aliases`), and an unknown
    one would keep the whole pack from loading.
    """
    known = inspect.signature(target).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        arguments = {name: value for name, value in arguments.items() if name in known}
    return target(**arguments)


def free_bytes(device) -> int | None:
    """Memory that ComfyUI counts as free on a device; None outside ComfyUI."""
    management = sys.modules.get("comfy.model_management")
    return management.get_free_memory(device) if management else None


def executing_node() -> str | None:
    """Id of the node that ComfyUI is executing; None outside a prompt."""
    execution = sys.modules.get("comfy_execution.utils")
    context = execution.get_executing_context() if execution else None
    return context.node_id if context else None


def outside_allocation_graph():
    """A context whose allocations ComfyUI does not record.

    Since 0.38 ComfyUI may record what a block allocates and replay it. A grouping outlives its block and renewing steps
    allocate otherwise than the rest, so that neither may enter the record.
    """
    prefetch = sys.modules.get("comfy.model_prefetch")
    pause = getattr(prefetch, "pause_malloc_graph", None)
    return pause() if pause else contextlib.nullcontext()
