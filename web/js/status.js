// What a run does, on its patch node: while it samples, and when it is over. A toast, once, where the artist must act.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { PATCHES, findNode } from "./nodes.js";
import { show } from "./panel.js";
import { ready, say } from "./words.js";

const told = new Set(); // said once, not for each of two experts and every run; the toast stays until it is closed

function percent(share, digits = 0) {
    return `${(100 * share).toFixed(digits)}%`;
}

// Lines of a text in paragraphs, the first of each as its title.
function paragraphs(text) {
    return text.split("\n\n").flatMap((paragraph) => {
        const [title, ...rest] = paragraph.split("\n");
        return [{ text: title, title: true }, ...rest];
    });
}

function tell(summary, detail, reason = detail) {
    if (told.has(reason)) return;
    told.add(reason);
    app.extensionManager.toast.add({ severity: "warn", summary, detail });
}

function onProgress({ node: id, step, steps, share, kernel, worst }) {
    const node = findNode(id, PATCHES);
    if (!node) return;
    const lines = [{ text: say("step", { step, steps }), title: true }, { bar: step / steps }];
    if (share !== null) lines.push(say("share", { share: percent(share), kernel }));
    if (worst) lines.push(say("worst", { error: percent(worst.error, 2), layer: worst.layer }));
    show(node, "run", lines);
}

function onNotice({ text }) {
    tell(say("notice"), `${text}\n${say("notice.remedy")}`, text);
}

function onReport({ node: id, text, calls_accelerated: taken, left_alone: reasons, stopped_early: stopped }) {
    const node = findNode(id, PATCHES);
    if (!node) return;
    show(node, "run", paragraphs(text));
    const known = Object.keys(reasons ?? {}).some((reason) => told.has(reason));
    if (taken === 0 && !stopped && !known) tell(say("nothing"), text.split("\n").slice(1).join("\n"));
}

app.registerExtension({
    name: "vc_attention.status",
    async setup() {
        await ready();
        api.addEventListener("vc_attention.progress", (event) => onProgress(event.detail));
        api.addEventListener("vc_attention.report", (event) => onReport(event.detail));
        api.addEventListener("vc_attention.notice", (event) => onNotice(event.detail));
    },
    // Compare and Report say in words what their pictures show.
    nodeCreated(node) {
        if (!["VCAttentionCompare", "VCAttentionReport"].includes(node.comfyClass)) return;
        const original = node.onExecuted;
        node.onExecuted = function (output) {
            original?.apply(this, arguments);
            show(this, "text", paragraphs((output?.text ?? [""])[0]));
        };
    },
});
