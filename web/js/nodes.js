// The pack's nodes on the canvas.
import { app } from "../../../scripts/app.js";

export const PATCHES = ["VCAttentionPatch", "VCAttentionPatchWrapper"];

// "7" is a node of the open workflow, "12:7" node 7 inside the subgraph node 12. Null where another workflow was opened
// meanwhile, in which the number is another kind of node.
export function findNode(id, types) {
    let graph = app.graph;
    let node = null;
    for (const part of String(id).split(":")) {
        node = graph?.getNodeById(Number(part));
        graph = node?.subgraph;
    }
    return types.includes(node?.type) ? node : null;
}

// Every node of some types, also in subgraphs, as [id as in findNode, node].
export function allNodes(types, graph = app.graph, prefix = "") {
    return graph.nodes.flatMap((node) => {
        const id = `${prefix}${node.id}`;
        const inside = node.subgraph ? allNodes(types, node.subgraph, `${id}:`) : [];
        return types.includes(node.type) ? [[id, node], ...inside] : inside;
    });
}
