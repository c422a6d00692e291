"""See the pack work: a real ComfyUI makes the same clip of a small trained model twice, without and with the patch.

    python tools/demo.py [--out output/demo] [--backend cuda|reference]

The first run sets up its own environment (tools/environment.py). Leaves the two clips, a picture of both side by
side, and a report (index.html, report.json) in the output folder.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import environment  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=environment.ROOT / "output" / "demo", help="folder for the results")
    parser.add_argument("--backend", choices=["cuda", "reference"], help="cuda where there is a GPU")
    options = parser.parse_args()
    environment.run_inside(__file__)

    import torch

    from tools import demo_report
    from tools.server import ComfyError, ComfyServer

    options.out.mkdir(parents=True, exist_ok=True)
    run = demo_run(options.backend or ("cuda" if torch.cuda.is_available() else "reference"))
    packs = {environment.PACK_FOLDER: environment.ROOT, "stand_ins": environment.TOOLS / "stand_ins"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        print("demo: starting ComfyUI (10 to 30 s) ...", flush=True)
        try:
            with ComfyServer(base, packs=packs) as server:
                print(f"demo: ComfyUI is up at {server.url}", flush=True)
                warm_up(server, run)
                stock = make_clip(server, run, "stock", options.out)
                patched = make_clip(server, run, "vc_attention", options.out)
        except ComfyError as error:
            sys.exit(f"error: {error}")
        finally:
            log = Path(base) / "server.log"
            if log.exists():
                shutil.copy(log, options.out / "server.log")
    summary = demo_report.write(options.out, run, stock, patched)
    print(f"\n{summary}\n\ndemo: open {(options.out / 'index.html').resolve()}")


def demo_run(backend: str):
    """Wan's workflow on the trained model of tools/tiny_video."""
    from tools.settings import TINY_WAN

    return replace(TINY_WAN, patch={**TINY_WAN.patch, "backend": backend})


def demo_prompt(run, patched: bool, prefix: str) -> dict:
    """The run's API graph; text encoder replaced by the stand-in, clip saved as webp and mp4, and the latent too."""
    from tools.graph import Link, Node, build, to_api, with_stand_ins, without_patch

    nodes = with_stand_ins(build(run))
    if not patched:
        nodes = without_patch(nodes)
    nodes["save"].inputs["filename_prefix"] = prefix
    webp = {"images": Link("decode"), "filename_prefix": prefix, "fps": run.fps, "lossless": True}
    webp.update(quality=80, method="fastest")
    nodes["webp"] = Node("SaveAnimatedWEBP", webp, (0, 0))
    last = nodes["decode"].inputs["samples"]
    nodes["latent file"] = Node("SaveLatent", {"samples": last, "filename_prefix": prefix}, (0, 0))
    return to_api(nodes)


def warm_up(server, run) -> None:
    """Sample one step for nothing, so that the first clip's time holds no loading and no first-use costs."""
    from tools.graph import Node, build, to_api, with_stand_ins, without_patch

    print("demo: warm-up ...", flush=True)
    (expert,) = run.experts
    short = replace(run, seed=run.seed + 1, steps=1, experts=(replace(expert, end=1),))
    nodes = without_patch(with_stand_ins(build(short)))
    last = nodes["decode"].inputs["samples"]
    kept = {key: node for key, node in nodes.items() if key not in ("vae", "decode", "video", "save")}
    kept["latent file"] = Node("SaveLatent", {"samples": last, "filename_prefix": "warm_up"}, (0, 0))
    prompt = to_api(kept)
    server.run(prompt, on_wait=progress(server, prompt))


def make_clip(server, run, name: str, out: Path) -> dict:
    """Queue one prompt, show its progress, copy its files to `out`; what was measured, for the report."""
    prompt = demo_prompt(run, name == "vc_attention", name)
    seen, started = len(server.events), time.monotonic()
    print(f"demo: {name}: {run.steps} steps, {run.tokens} tokens ...", flush=True)
    outputs = server.run(prompt, on_wait=progress(server, prompt))
    events = server.events[seen:]
    files = {}
    for path in server.files(outputs):
        files[path.suffix] = shutil.copy(path, out / f"{name}{path.suffix}")
    print(f"demo: {name}: done in {time.monotonic() - started:.0f} s", flush=True)
    return {
        "files": files,
        "sampling_s": round(_seconds_in(events, prompt, "KSamplerAdvanced"), 2),
        "status": [
            {"title": prompt[event.data["node"]]["_meta"]["title"], **event.data}
            for event in events
            if event.type == "vc_attention.report"
        ],
    }


def progress(server, prompt: dict):
    """A function that prints every few seconds what the server is doing with `prompt`."""
    seen, started = len(server.events), time.monotonic()
    shown = [started]

    def on_wait() -> None:
        if time.monotonic() - shown[0] > 3:
            shown[0] = time.monotonic()
            print(f"  {shown[0] - started:4.0f} s  {_doing(server.events[seen:], prompt)}", flush=True)

    return on_wait


def _doing(events, prompt: dict) -> str:
    """What the server said last, in words."""
    words = "waiting"
    for event in events:
        node = prompt.get(str(event.data.get("node")), {})
        if event.type == "executing" and node:
            words = node["_meta"]["title"]
        elif event.type == "progress" and node:
            words = f"{node['_meta']['title']}: step {event.data['value']} of {event.data['max']}"
    return words


def _seconds_in(events, prompt: dict, class_type: str) -> float:
    """Wall time that the server spent in nodes of one type."""
    spans = [event for event in events if event.type == "executing"]
    total = 0.0
    for event, following in zip(spans, spans[1:], strict=False):
        node = prompt.get(str(event.data.get("node")))
        if node and node["class_type"] == class_type:
            total += following.at - event.at
    return total


if __name__ == "__main__":
    main()
