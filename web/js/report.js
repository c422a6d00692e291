// Shows on each VC-Attention Patch node what its last sampling run did, and says so where an artist looks when not a
// single attention call was taken over.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { ComfyWidgets } from "../../../scripts/widgets.js";

const TYPE = "VCAttentionPatch";
const NAME = "last run";
const LINE_HEIGHT = 15;
const LINE_LENGTH = 52; // characters that fit beside each other on a node of the usual width
const PADDING = 16;

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

function reportWidget(node) {
    const existing = node.widgets.find((widget) => widget.name === NAME);
    if (existing) return existing;
    const { widget } = ComfyWidgets.STRING(node, NAME, ["STRING", { multiline: true }], app);
    // What the last run did is neither part of the workflow nor an input of the node.
    widget.serialize = false;
    widget.options.serialize = false;
    widget.inputEl.readOnly = true;
    return widget;
}

function show(node, text) {
    const height = node.computeSize()[1];
    const widget = reportWidget(node);
    widget.value = text;
    const lines = text.split("\n").reduce((sum, line) => sum + Math.ceil(line.length / LINE_LENGTH), 0);
    const wanted = Math.max(node.computeSize()[1], height + lines * LINE_HEIGHT + PADDING);
    if (node.size[1] < wanted) node.setSize([node.size[0], wanted]);
    node.setDirtyCanvas(true, true);
}

function onReport({ node: id, text, calls_accelerated: accelerated, stopped_early: stoppedEarly }) {
    const node = findNode(id);
    if (node?.type !== TYPE) return; // another workflow was opened during the run, where the number is another node's
    show(node, text);
    if (accelerated === 0 && !stoppedEarly) {
        const summary = "VC-Attention took over nothing";
        const detail = text.split("\n").slice(1).join("\n");
        app.extensionManager.toast.add({ severity: "warn", summary, detail, life: 12000 });
    }
}

app.registerExtension({
    name: "vc_attention.report",
    setup() {
        api.addEventListener("vc_attention.report", (event) => onReport(event.detail));
    },
});
