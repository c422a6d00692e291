// After a sampling run ComfyUI shows the patch node's report on it. This makes room for the whole report, and says so
// where an artist looks when not a single attention call was taken over.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

const WIDGET_HEIGHT = 24;
const LINE_HEIGHT = 18;
const LINE_LENGTH = 44; // characters that fit beside each other on a node of the usual width
const FRAME_HEIGHT = 70; // title, sockets, margins

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

function makeRoom(node, text) {
    const report = node.widgets.filter((widget) => widget.type === "progressText");
    // What the last run did is no part of the workflow; older web interfaces would save it as one more widget value.
    for (const widget of report) widget.serialize = false;
    const lines = text.split("\n").reduce((sum, line) => sum + Math.ceil(line.length / LINE_LENGTH), 0);
    const height = FRAME_HEIGHT + WIDGET_HEIGHT * (node.widgets.length - report.length) + LINE_HEIGHT * lines;
    if (node.size[1] < height) node.setSize([node.size[0], height]);
    node.setDirtyCanvas(true, true);
}

function onReport({ node: id, text, calls_accelerated: accelerated }) {
    const node = findNode(id);
    if (!node) return;
    makeRoom(node, text);
    if (accelerated === 0) {
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
