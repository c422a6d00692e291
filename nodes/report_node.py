"""The VC-Attention Report node."""

from __future__ import annotations

import json

from comfy_api.latest import io, ui

from . import drawing, history, report_picture
from .compat import accepted
from .report import without_folders

KEY = "vc_attention"  # in saved files
PATCHES = "VCAttentionPatch"  # what the names of the patch nodes start with


class VCAttentionReport(io.ComfyNode):
    """LATENT -> LATENT, IMAGE, STRING: what the sampling that made this latent did, and into every file saved after."""

    @classmethod
    def define_schema(cls):
        return accepted(
            io.Schema,
            node_id="VCAttentionReport",
            display_name="VC-Attention Report",
            category="model_patches/attention",
            search_aliases=["vc attention", "attention report", "attention error", "provenance"],
            description=(
                "Shows what VC-Attention Patch did, layer by layer and step by step: errors, what ran, times. Put it "
                "between the last sampler and the VAE: then images and videos saved after it carry the report."
            ),
            inputs=[io.Latent.Input("samples", tooltip="What the sampler made. It is passed on as it is.")],
            outputs=[
                io.Latent.Output(tooltip="The same latent. What is saved after it carries the report."),
                io.Image.Output(id="picture", display_name="picture", tooltip="The report as a picture."),
                io.String.Output(id="json", display_name="JSON", tooltip="The report as data: docs/report.md."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt, io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, samples):
        hidden = cls.hidden
        nodes = ancestors(hidden.dynprompt, hidden.unique_id)
        # Another workflow may have given a patch node's number to another kind of node.
        found = [run for run in history.runs_among(nodes) if nodes[run["patch"]]["class_type"].startswith(PATCHES)]
        runs = [
            {**run, "title": _title(nodes[run["patch"]]), "report": without_folders(run["report"])} for run in found
        ]
        document = [{"title": run["title"], "node": run["patch"], **run["report"]} for run in runs]
        text = "\n\n".join("\n".join((run["title"], *report_picture.facts(run["report"]))) for run in runs)
        if document and isinstance(hidden.extra_pnginfo, dict):
            # ComfyUI hands this one dictionary to every node of the prompt, and nodes that save write all of it.
            hidden.extra_pnginfo[KEY] = document
        picture = drawing.to_image(report_picture.draw([(run["title"], run["report"]) for run in runs]))
        preview = ui.PreviewImage(picture, cls=cls).as_dict()
        shown = text or "nothing to report: no sampler before this node ran a model with VC-Attention Patch"
        return io.NodeOutput(samples, picture, json.dumps(document, indent=1), ui={**preview, "text": (shown,)})


def ancestors(prompt, node: str) -> dict[str, dict]:
    """Every node that `node` depends on, by id, in a prompt that has get_node()."""
    found: dict[str, dict] = {}
    waiting = [node]
    while waiting:
        for value in prompt.get_node(waiting.pop())["inputs"].values():
            if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and value[0] not in found:
                found[value[0]] = prompt.get_node(value[0])
                waiting.append(value[0])
    return found


def _title(node: dict) -> str:
    return node.get("_meta", {}).get("title") or node["class_type"]
