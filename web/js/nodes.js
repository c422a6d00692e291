// The pack's nodes on the canvas.
import { app } from "../../../scripts/app.js";

export const PATCH = "VCAttentionPatch";

// "7" is a node of the open workflow, "12:7" node 7 inside the subgraph node 12. Null where another workflow was opened
// meanwhile, in which the number is another kind of node.
export function findNode(id, type) {
    let graph = app.graph;
    let node = null;
    for (const part of String(id).split(":")) {
        node = graph?.getNodeById(Number(part));
        graph = node?.subgraph;
    }
    return node?.type === type ? node : null;
}

// Every node of a type, also in subgraphs, as [id as in findNode, node].
export function allNodes(type, graph = app.graph, prefix = "") {
    return graph.nodes.flatMap((node) => {
        const id = `${prefix}${node.id}`;
        const inside = node.subgraph ? allNodes(type, node.subgraph, `${id}:`) : [];
        return node.type === type ? [[id, node], ...inside] : inside;
    });
}
