// The interface's words in the artist's language, from locales/<language>/main.json; English where a language lacks one.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

let words = {};

async function load() {
    const all = await (await api.fetchApi("/i18n")).json();
    const language = app.extensionManager.setting.get("Comfy.Locale");
    words = { ...all.en?.vcAttention, ...all[language]?.vcAttention };
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
