// On each patch node, before anything is queued: how long its attention is, what will run, how fast and in how much
// memory. The server answers; it reads the model file's header.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { PATCHES, allNodes } from "./nodes.js";
import { show } from "./panel.js";
import { ready, say } from "./words.js";

const QUIET_MS = 600; // without a change of the graph before it is asked about

function memory(bytes) {
    return bytes < 2 ** 30 ? `${Math.ceil(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

function lines(forecast) {
    if (!forecast || forecast.unknown) {
        const why = say(`unknown.${forecast?.unknown ?? "unused"}`);
        return [{ text: say("forecast.unknown", { why }), faint: true }];
    }
    if (!forecast.tokens) return [{ text: say("forecast.unknown", { why: forecast.reason }), faint: true }];
    const tokens = forecast.tokens.toLocaleString("en");
    if (forecast.reason) return [{ text: say("forecast.stock", { tokens, why: forecast.reason }), faint: true }];
    const gpu = say("forecast.tokens", { tokens, memory: memory(forecast.bytes) });
    if (!forecast.factor) return [{ text: gpu, faint: true }];
    const round = (factor) => (Math.floor(10 * factor) / 10).toFixed(1); // nobody minds a run that is faster than told
    const values = { factor: round(forecast.factor), attention: round(forecast.attention_factor) };
    return [{ text: gpu, faint: true }, { text: say(`forecast.${forecast.source}`, values), faint: true }];
}

async function update() {
    const nodes = allNodes(PATCHES).filter(([, node]) => node.mode === 0);
    if (!nodes.length) return;
    const prompt = (await app.graphToPrompt()).output;
    const ids = nodes.map(([id]) => id).filter((id) => id in prompt);
    const body = JSON.stringify({ prompt, nodes: ids });
    const answer = await api.fetchApi("/vc_attention/forecast", { method: "POST", body });
    if (!answer.ok) return;
    const forecasts = await answer.json();
    for (const [id, node] of nodes) show(node, "forecast", lines(forecasts[id]));
}

let waiting = null;

function soon() {
    clearTimeout(waiting);
    waiting = setTimeout(update, QUIET_MS);
}

app.registerExtension({
    name: "vc_attention.forecast",
    async setup() {
        await ready();
        api.addEventListener("graphChanged", soon);
        api.addEventListener("vc_attention.report", soon); // the next run may now be judged by this one
    },
    afterConfigureGraph: soon,
});
