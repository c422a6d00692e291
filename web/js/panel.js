// A few lines and a bar at the bottom of a node, in the colours of the artist's theme. Neither saved nor sent anywhere.
const NAME = "vc_attention";
const STYLE = {
    box: "padding: 6px 8px; border-radius: 6px; background: var(--comfy-input-bg); color: var(--input-text);",
    line: "font: 11px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; user-select: text;",
    bar: "height: 4px; margin: 4px 0; border-radius: 2px; background: var(--border-color); overflow: hidden;",
    fill: "height: 100%; border-radius: 2px; background: var(--p-primary-color, #4a90d9);",
};
const PADDING = 8;

// lines: strings, or { text, title: true } for one that stands out, { text, faint: true } for one that does not,
// { bar: 0..1 } for a bar.
function element(line) {
    const made = document.createElement("div");
    if (line.bar !== undefined) {
        made.style.cssText = STYLE.bar;
        const fill = made.appendChild(document.createElement("div"));
        fill.style.cssText = STYLE.fill;
        fill.style.width = `${Math.round(100 * line.bar)}%`;
        return made;
    }
    made.style.cssText = STYLE.line;
    made.textContent = line.text ?? line;
    if (line.title) made.style.fontWeight = "600";
    if (line.faint) made.style.color = "var(--descrip-text)";
    return made;
}

function create(node) {
    const outer = document.createElement("div");
    const box = outer.appendChild(document.createElement("div"));
    box.style.cssText = STYLE.box;
    const panel = { box, height: 0, parts: {}, text: "" };
    const options = { serialize: false, hideOnZoom: false, getValue: () => panel.text, setValue: () => {} };
    options.getMinHeight = () => panel.height;
    const widget = node.addDOMWidget(NAME, "vc_attention_panel", outer, options);
    widget.serialize = false;
    // The room that the lines take is known once they are laid out, and changes with the node's width.
    new ResizeObserver(() => grow(node, panel)).observe(box);
    return panel;
}

// Give the node as many pixels more or less as the lines take; what the artist dragged it to beyond them stays.
function grow(node, panel) {
    if (!panel.box.offsetHeight) return; // not on screen
    const height = panel.box.offsetHeight + PADDING;
    const change = height - panel.height;
    if (!change) return;
    panel.height = height;
    node.setSize([node.size[0], Math.max(node.size[1] + change, node.computeSize()[1])]);
    node.setDirtyCanvas(true, true);
}

// Show `lines` as one part of the node's panel; parts stand in the order in which they first came.
export function show(node, part, lines) {
    node.vcAttentionPanel ??= create(node);
    const panel = node.vcAttentionPanel;
    panel.parts[part] = lines;
    const all = Object.values(panel.parts).flat();
    panel.box.replaceChildren(...all.map(element));
    panel.text = all.filter((line) => line.bar === undefined).map((line) => line.text ?? line).join("\n");
    panel.box.style.display = all.length ? "" : "none";
}
