// A "preset" at the top of the patch node, which fills the widgets that decide between speed and quality. It is no
// widget of its own: it names what the others hold, so that nothing of it is saved and no old workflow misses it.
import { app } from "../../../scripts/app.js";
import { PATCHES } from "./nodes.js";
import { ready, say } from "./words.js";

// Widgets that a preset sets, where they differ from the node's defaults.
const PRESETS = {
    balanced: {},
    fast: { refresh_interval: 8, error_budget: "fast" },
    quality: { smoothing: "quality", error_budget: "quality" },
    paper: { smoothing: "paper", error_budget: "off" },
};
const SET = ["bits", "grouping_window", "clusters", "refresh_interval", "probability", "smoothing", "error_budget"];
const CUSTOM = "custom";

function set(node) {
    return node.widgets.filter((widget) => SET.includes(widget.name));
}

function wanted(node, preset) {
    const { required, optional } = node.constructor.nodeData.input;
    return (name) => PRESETS[preset][name] ?? { ...required, ...optional }[name][1].default;
}

function current(node) {
    const fits = (preset) => set(node).every((widget) => widget.value === wanted(node, preset)(widget.name));
    return Object.keys(PRESETS).find(fits) ?? CUSTOM;
}

function addPreset(node) {
    const names = [...Object.keys(PRESETS), CUSTOM];
    const shown = Object.fromEntries(names.map((name) => [name, say(`preset.${name}`)]));
    const apply = (label) => {
        const preset = names.find((name) => shown[name] === label);
        if (preset !== CUSTOM) for (const widget of set(node)) widget.value = wanted(node, preset)(widget.name);
        refresh();
        node.setDirtyCanvas(true, true);
    };
    const options = { values: Object.values(shown), serialize: false };
    const widget = node.addWidget("combo", "preset", shown[current(node)], apply, options);
    widget.label = say("preset");
    widget.tooltip = say("preset.tooltip");
    widget.serialize = false;
    node.widgets.unshift(node.widgets.pop());
    const refresh = () => (widget.value = shown[current(node)]);
    follow(node, refresh);
}

// Keep the preset's name true after each change of a widget and after a workflow was opened.
function follow(node, refresh) {
    for (const event of ["onWidgetChanged", "onConfigure"]) {
        const original = node[event];
        node[event] = function (name) {
            original?.apply(this, arguments);
            if (name !== "preset") refresh();
        };
    }
    // Interfaces leave a hole among the saved values where a widget that is not saved stands before others.
    const original = node.onSerialize;
    node.onSerialize = function (saved) {
        original?.apply(this, arguments);
        saved.widgets_values = this.widgets.filter((widget) => widget.serialize !== false).map((widget) => widget.value);
    };
}

app.registerExtension({
    name: "vc_attention.presets",
    init: ready,
    nodeCreated(node) {
        if (PATCHES.includes(node.comfyClass)) addPreset(node);
    },
});
