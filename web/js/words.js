// The interface's words in the artist's language, from locales/<language>/main.json; English where a language lacks one.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

let words = {};
let nodeWords = {};

async function load() {
    const all = await (await api.fetchApi("/i18n")).json();
    const language = app.extensionManager.setting.get("Comfy.Locale");
    words = { ...all.en?.vcAttention, ...all[language]?.vcAttention };
    nodeWords = all[language]?.nodeDefs ?? {};
}

let loading = null;

// Await this before the first `say`.
export function ready() {
    loading ??= load();
    return loading;
}

// say("step", { step: 3 }) fills "{step}" in.
export function say(key, values = {}) {
    return (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// Interfaces before 1.40 forget what packs translate as soon as they load a language other than English, and show a
// node's names as the code has them.
app.registerExtension({
    name: "vc_attention.words",
    init: ready,
    nodeCreated(node) {
        const own = nodeWords[node.comfyClass];
        if (!own || !node.comfyClass.startsWith("VCAttention")) return;
        if (node.title === node.constructor.title) node.title = node.constructor.title = own.display_name;
        for (const widget of node.widgets ?? []) {
            widget.label = own.inputs?.[widget.name]?.name ?? widget.label;
            widget.tooltip = own.inputs?.[widget.name]?.tooltip ?? widget.tooltip;
        }
        for (const input of node.inputs ?? []) input.localized_name = own.inputs?.[input.name]?.name ?? input.localized_name;
        node.outputs?.forEach((output, slot) => {
            output.localized_name = own.outputs?.[slot]?.name ?? output.localized_name;
        });
    },
});
