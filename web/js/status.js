// Shows on each VC-Attention Patch node what its last sampling run did: calls taken over, calls left alone and why.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { ComfyWidgets } from "../../../scripts/widgets.js";

const NAME = "vc_attention_status";

// "7" is a node of the open workflow, "12:7" node 7 inside the subgraph node 12.
function findNode(id) {
    let graph = app.graph;
    let node = null;
    for (const part of String(id).split(":")) {
        node = graph?.getNodeById(Number(part));
        graph = node?.subgraph;
    }
    return node;
}

function statusWidget(node) {
    const existing = node.widgets?.find((widget) => widget.name === NAME);
    if (existing) return existing;
    const { widget } = ComfyWidgets.STRING(node, NAME, ["STRING", { multiline: true }], app);
    // A report of the last run is neither part of the workflow nor an input of the node.
    widget.serialize = false;
    widget.options.serialize = false;
    widget.label = "last run";
    if (widget.inputEl) widget.inputEl.readOnly = true;
    return widget;
}

function showStatus({ node: id, text }) {
    const node = findNode(id);
    if (!node) return;
    const isNew = !node.widgets?.some((widget) => widget.name === NAME);
    statusWidget(node).value = text;
    if (isNew) {
        const [width, height] = node.computeSize();
        node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height + 60)]);
    }
    node.setDirtyCanvas(true, true);
}

app.registerExtension({
    name: "vc_attention.status",
    setup() {
        api.addEventListener("vc_attention.report", (event) => showStatus(event.detail));
    },
});
