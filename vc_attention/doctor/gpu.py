"""What PyTorch and the kernels do here: runs in a process of its own, which prints one finding a line as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import driver, launch
from ..build import selftest as launch_test
from ..errors import VCAttentionError
from .finding import REPORT, Finding, guarded

if TYPE_CHECKING:
    from . import speed

OLDEST_TORCH = (2, 4)
PROFILES = {"balanced": 8, "quality": 8, "4bit": 4, "int8-nvfp4": 4}  # of config.PROFILES -> bits
INSTALL_TORCH = "install PyTorch's CUDA build into this Python, as ComfyUI's own instructions say"
USABLE_ERROR = 0.2  # a wrong tile, scale or mean is above it, 4 bits are far below


def run() -> int:
    """Print every finding as it comes; progress goes to stderr."""
    for finding in findings():
        print(json.dumps(dataclasses.asdict(finding)), flush=True)
    return 0


def progress(text: str) -> None:
    print(f"doctor: {text}", file=sys.stderr, flush=True)


def findings() -> Iterator[Finding]:
    progress("starting PyTorch")
    yield from guarded("PyTorch", pytorch)
    if not usable():
        yield Finding("Self-test", "kernels", "note", "not run, see above")
        return
    for gpu in driver.load().gpus():
        yield from guarded("Self-test", lambda gpu=gpu: self_tests(gpu))
        able: list[str] = []
        yield from guarded("What runs", lambda gpu=gpu, able=able: profiles(gpu, able))
        yield from guarded("Speed", lambda gpu=gpu, able=able: speeds(gpu, able))


def pytorch() -> Iterator[Finding]:
    """Whether there is a PyTorch that sees the GPUs."""
    try:
        import torch

        release, cuda = torch.__version__, torch.version.cuda
        available = torch.cuda.is_available()
    except Exception as error:  # what a half-installed PyTorch raises is anybody's guess
        yield Finding("PyTorch", "torch", "bad", f"does not import: {type(error).__name__}: {error}", INSTALL_TORCH)
        return
    text = f"{release}, {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    if tuple(int(part) for part in release.split(".")[:2]) < OLDEST_TORCH:
        yield Finding("PyTorch", "torch", "bad", text, "update PyTorch to {}.{} or later".format(*OLDEST_TORCH))
    elif torch.version.hip or not cuda:
        yield Finding("PyTorch", "torch", "bad", text, INSTALL_TORCH)
    elif not available:
        remedy = f"update NVIDIA's driver to one that runs CUDA {cuda}, or install a PyTorch for an older CUDA"
        yield Finding("PyTorch", "torch", "bad", f"{text}, which finds no GPU that it can use", remedy)
    else:
        yield Finding("PyTorch", "torch", "ok", text)


def usable() -> bool:
    """Whether PyTorch runs on a GPU here."""
    try:
        import torch

        return bool(torch.version.cuda) and torch.cuda.is_available()
    except Exception:  # told by pytorch()
        return False


def self_tests(gpu: driver.Gpu) -> Iterator[Finding]:
    """Every kernel for this GPU, each against what it should compute."""
    import torch

    from .. import dispatch, selftest

    progress(f"self-test on {gpu}")
    try:
        yield Finding("Self-test", f"launch on GPU {gpu.index}", "ok", launch_test.run(gpu.index))
    except VCAttentionError as error:
        yield Finding("Self-test", f"launch on GPU {gpu.index}", "bad", str(error), _build_again())
        return
    device = torch.device("cuda", gpu.index)
    specs = [spec for spec in dispatch.KERNELS if gpu.capability in spec.capabilities]
    if any(selftest.MMA_UNIT in spec.units for spec in specs):
        mismatch = selftest.mma_mismatch(device)
        yield _verdict(f"4-bit matrix instruction on GPU {gpu.index}", mismatch)
    for number, spec in enumerate(specs, 1):
        progress(f"self-test on GPU {gpu.index}: kernel {number} of {len(specs)}")
        missing = [text for unit in spec.units if (text := launch.missing(unit, gpu.index))]
        name = f"{spec.unit} {spec.p_scale} d{spec.head_dim} on GPU {gpu.index}"
        yield _verdict(name, missing[0] if missing else dispatch.self_test(spec, gpu.index))


def _verdict(name: str, failure: str | None) -> Finding:
    if failure is None:
        return Finding("Self-test", name, "ok", "as it should compute")
    return Finding("Self-test", name, "bad", failure, _build_again())


def _build_again() -> str:
    return f"run {launch.rebuild_command()}; if that does not help, update NVIDIA's driver and {REPORT}"


def profiles(gpu: driver.Gpu, able: list[str]) -> Iterator[Finding]:
    """Which of the node's profiles have kernels here; `able` gets their names."""
    import torch

    from .. import config, dispatch

    refused = {}
    for name, bits in PROFILES.items():
        found = dispatch.select(torch.device("cuda", gpu.index), config.PROFILES[name], 128)
        title = f"{name} ({bits} bits) on GPU {gpu.index}"
        if isinstance(found, list):
            refused[title] = "; ".join(found)
            continue
        able.append(name)
        text = f"{found.unit}, for attention over {found.minimum_tokens} tokens or more"
        yield Finding("What runs", title, "ok", text, data={"accelerates": True})
    for title, reasons in refused.items():
        if able:
            yield Finding("What runs", title, "note", reasons)
        else:
            yield Finding("What runs", title, "bad", reasons, "see above; until then the model's own attention is used")


def speeds(gpu: driver.Gpu, able: list[str]) -> Iterator[Finding]:
    """Every able profile at each length."""
    import torch

    from .. import config
    from . import speed

    for name in able:
        for tokens in speed.TOKENS:
            progress(f"timing {name} on GPU {gpu.index} at {tokens} tokens")
            title = f"{name} at {tokens} tokens on GPU {gpu.index}"
            try:
                taken = speed.measure(torch.device("cuda", gpu.index), config.PROFILES[name], tokens)
            except torch.cuda.OutOfMemoryError:
                yield Finding("Speed", title, "note", "not enough free GPU memory; close other programs and try again")
                continue
            yield _speed(title, taken)


def _speed(title: str, taken: speed.Speed) -> Finding:
    text = (
        f"{taken.ours_ms:.1f} ms, PyTorch's own {taken.stock_ms:.1f} ms: {taken.stock_ms / taken.ours_ms:.2f} times as "
        f"fast; error {100 * taken.ours_error:.2f} %, PyTorch's own {100 * taken.stock_error:.2f} %"
    )
    wrong = not taken.ours_error < USABLE_ERROR  # NaN is wrong, too
    state = "bad" if wrong else "ok" if taken.ours_ms < taken.stock_ms else "note"
    remedy = f"take the node out of the workflow and {REPORT}" if wrong else ""
    return Finding("Speed", title, state, text, remedy, dataclasses.asdict(taken))
