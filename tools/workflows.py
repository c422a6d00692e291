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

from tools.graph import OUTPUTS, PATCH, WRAPPER_PATCH, Link, Node, build, numbered  # noqa: E402
from tools.settings import RUNS, Run  # noqa: E402

WORKFLOWS = ROOT / "workflows"
WIDGET_TYPES = {"BOOLEAN", "INT", "FLOAT", "STRING", "COMBO"}


def to_ui(nodes: dict[str, Node], run: Run) -> dict:
    """The format the web interface saves and opens, version 0.4."""
    ids = numbered(nodes)
    links: list[list] = []
    shown = []
    for order, (key, node) in enumerate(nodes.items()):
        inputs = []
        for name, given in _sockets_first(node, nodes):
            kind = _type_of(given, nodes)
            link = [len(links) + 1, ids[given.node], given.slot, ids[key], len(inputs), kind]
            links.append(link)
            widget = {"widget": {"name": name}} if kind in WIDGET_TYPES else {}
            inputs.append({"name": name, "type": kind, **widget, "link": link[0]})
        shown.append(_ui_node(node, nodes, ids[key], order, inputs))
    for item in shown:
        for slot, output in enumerate(item["outputs"]):
            output["links"] = [link[0] for link in links if link[1:3] == [item["id"], slot]]
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


def _type_of(link: Link, nodes: dict[str, Node]) -> str:
    return OUTPUTS[nodes[link.node].type][link.slot]


def _sockets_first(node: Node, nodes: dict[str, Node]) -> list[tuple[str, Link]]:
    """The linked inputs as the interface lists them: sockets, then widgets that are fed."""
    linked = [(name, given) for name, given in node.inputs.items() if isinstance(given, Link)]
    return sorted(linked, key=lambda pair: _type_of(pair[1], nodes) in WIDGET_TYPES)


def _widgets(node: Node, nodes: dict[str, Node]) -> list:
    """Widget values in order. The interface keeps one more value after a seed (what to do with it next) and after a
    picture (its upload button)."""
    values = []
    for name, given in node.inputs.items():
        if isinstance(given, Link):
            if _type_of(given, nodes) in WIDGET_TYPES:
                values.append(given.shown)
            continue
        values.append(given)
        if name in ("noise_seed", "seed"):
            values.append("fixed")
        if node.type == "LoadImage":
            values.append("image")
    return values


def _ui_node(node: Node, nodes: dict[str, Node], number: int, order: int, inputs: list[dict]) -> dict:
    widgets = _widgets(node, nodes)
    properties = {"Node name for S&R": node.type}
    if node.type in (PATCH, WRAPPER_PATCH):
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


TWO_EXPERTS = """Wan2.2 has two models: one lays out the shot while the picture is still noise, the other draws the
detail. Each goes through its own patch, and both patches should have the same settings. The step at which the first
sampler ends must be the one at which the second starts; `steps` must be the same in both.
"""


def _note(run: Run) -> str:
    listing = "\n".join(f"- [{f.name}]({f.url}) in `models/{f.directory}`" for f in run.files)
    remarks = [TWO_EXPERTS.replace("\n", " ")] if len(run.experts) > 1 else []
    if run.image:
        remarks.append("Choose the first picture of the clip in *First picture*; it is brought to the clip's size.")
    remarks += [run.advice] if run.advice else []
    return f"""## {run.title}

**What the patch does.** *VC-Attention Patch* computes the model's self-attention in fewer bits. After a run the node
shows how many attention calls it took over and why it left others alone; *VC-Attention Report* shows every layer and
step, and the saved video carries it.

**To compare with and without**, turn *VC-Attention on or off* and queue again with the same seed.

**Changing things.** Prompt, size and length are free.

{"".join(remark.strip() + chr(10) * 2 for remark in remarks)}**Files**

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
