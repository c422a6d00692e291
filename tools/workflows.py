"""Write workflows/*.json, what the web interface opens, from the runs of tools/settings.py.

python tools/workflows.py            write them
python tools/workflows.py --check    fail if the files on disk differ
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.graph import OUTPUTS, PATCH, SOCKETS, Node, build, numbered  # noqa: E402
from tools.settings import RUNS, Run  # noqa: E402

WORKFLOWS = ROOT / "workflows"


def to_ui(nodes: dict[str, Node], run: Run) -> dict:
    """The format the web interface saves and opens, version 0.4."""
    ids = numbered(nodes)
    links: list[list] = []
    shown = []
    for order, (key, node) in enumerate(nodes.items()):
        sockets = [name for name in node.inputs if name in SOCKETS]
        inputs = []
        for slot, name in enumerate(sockets):
            link = [len(links) + 1, ids[node.inputs[name]], 0, ids[key], slot, SOCKETS[name]]
            links.append(link)
            inputs.append({"name": name, "type": SOCKETS[name], "link": link[0]})
        shown.append(_ui_node(node, ids[key], order, inputs))
    for item in shown:
        for output in item["outputs"]:
            output["links"] = [link[0] for link in links if link[1] == item["id"]]
    notes = [_ui_note(len(ids) + 1, len(shown), _note(run), (-900, 0), (360, 720))]
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"vc-attention/{run.title}")),
        "revision": 0,
        "last_node_id": len(ids) + len(notes),
        "last_link_id": len(links),
        "nodes": shown + notes,
        "links": links,
        "groups": [],
        "config": {},
        "extra": {},
        "version": 0.4,
    }


def _ui_node(node: Node, number: int, order: int, inputs: list[dict]) -> dict:
    widgets = []
    for name, given in node.inputs.items():
        if name not in SOCKETS:
            widgets.append(given)
            if name == "noise_seed":
                widgets.append("fixed")
    properties = {"Node name for S&R": node.type}
    if node.type == PATCH:
        properties["cnr_id"] = "vc-attention"
    files = [{"name": f.name, "url": f.url, "directory": f.directory} for f in node.files if f.url]
    if files:
        properties["models"] = files
    item = {
        "id": number,
        "type": node.type,
        "pos": list(node.at),
        "size": list(node.size),
        "flags": {},
        "order": order,
        "mode": 0,
        "inputs": inputs,
        "outputs": [{"name": kind, "type": kind, "links": []} for kind in OUTPUTS[node.type]],
        "properties": properties,
    }
    if widgets:
        item["widgets_values"] = widgets
    if node.title:
        item["title"] = node.title
    return item


def _ui_note(number: int, order: int, text: str, at: tuple[int, int], size: tuple[int, int]) -> dict:
    return {
        "id": number,
        "type": "MarkdownNote",
        "title": "Read me",
        "pos": list(at),
        "size": list(size),
        "flags": {},
        "order": order,
        "mode": 0,
        "inputs": [],
        "outputs": [],
        "properties": {},
        "widgets_values": [text],
    }


def _note(run: Run) -> str:
    listing = "\n".join(f"- [{f.name}]({f.url}) in `models/{f.directory}`" for f in run.files)
    return f"""## {run.title}

Wan2.2 has two models: one lays out the shot while the picture is still noise, the other draws the detail. Each goes
through its own **VC-Attention Patch**, and both patches should have the same settings.

**What the patch does.** It computes the model's self-attention in fewer bits. After a run the node shows how many
attention calls it took over and why it left others alone.

**To compare with and without**, select both patch nodes, press Ctrl+B (bypass) and queue again with the same seed.

**Changing things.** Prompt, size and length are free. The step at which the first sampler ends must be the one at
which the second starts; `steps` must be the same in both.

**Files**

{listing}
"""


def render(name: str) -> str:
    """The text of workflows/<name>.json."""
    run = RUNS[name]
    return json.dumps(to_ui(build(run), run), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    stale = []
    for name in RUNS:
        path = WORKFLOWS / f"{name}.json"
        if not path.exists() or path.read_text(encoding="utf-8") != render(name):
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(render(name), encoding="utf-8", newline="\n")
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(stale)}; run python tools/workflows.py")
    print(f"{len(RUNS)} workflows, {len(stale)} {'out of date' if '--check' in sys.argv else 'written'}")


if __name__ == "__main__":
    main()
