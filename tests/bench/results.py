"""Results on disk: one JSON file, one Markdown table and one plot per benchmark, under tests/bench/results/."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from vc_attention.build import source
from vc_attention.build.units import UNITS

FOLDER = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parents[2]


def code_hash(unit: str) -> str:
    """Hash of what the compiler sees of a unit: its flat text without comments and spacing."""
    text = re.sub(r"//[^\n]*|#line[^\n]*", "", source.flatten(UNITS[unit].source))
    text = " ".join(text.split()) + " ".join(UNITS[unit].options)
    return hashlib.sha256(text.encode()).hexdigest()


def older(head: dict) -> list[str]:
    """Units of a result's header whose sources have changed since it was measured."""
    return [unit for unit, recorded in head["code"].items() if unit not in UNITS or recorded != code_hash(unit)]


def _git(*arguments: str) -> str:
    try:
        run = subprocess.run(("git", "-C", REPOSITORY, *arguments), capture_output=True, text=True, check=True)
        return run.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def header(units: tuple[str, ...], command: str, commit: str | None) -> dict:
    """Where, when and with what a result was made; `units` are the compile units that it speaks of."""
    import torch

    gpu = torch.cuda.get_device_properties(0)
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu.uuid}")
        driver = pynvml.nvmlSystemGetDriverVersion()
        clocks = {
            "sm_max_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        }
    except Exception as reason:  # a header without clocks is better than no result
        driver, clocks = "unknown", {"unknown": str(reason)}
    return {
        "device": gpu.name,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "clocks": clocks,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "csrc_commit": commit or _git("log", "-1", "--format=%h", "--", "csrc") or "unknown",
        "code": {unit: code_hash(unit) for unit in units},
        "command": command,
    }


def add_speedups(rows: list[dict], baselines: tuple[str, ...]) -> None:
    """Gives every row its speed relative to each baseline of the same shape and run."""
    timed = [row for row in rows if "ms" in row]
    medians = {(row["shape"], row["name"]): row["ms"]["median"] for row in timed}
    for row in timed:
        found = {name: medians.get((row["shape"], name)) for name in baselines}
        row["speedup"] = {name: ms / row["ms"]["median"] for name, ms in found.items() if ms}


def save(benchmark: str, head: dict, rows: list[dict], notes: list[str]) -> None:
    """Writes <benchmark>.json, .md and, where matplotlib is, .png."""
    FOLDER.mkdir(exist_ok=True)
    result = {"header": head, "notes": notes, "rows": rows}
    (FOLDER / f"{benchmark}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_tables([benchmark])
    plot(benchmark, result)


def write_tables(benchmarks: list[str]) -> None:
    """Write <benchmark>.md of every result on disk; it says so where the sources have changed since."""
    for path in (FOLDER / f"{benchmark}.json" for benchmark in benchmarks):
        if path.exists():
            path.with_suffix(".md").write_text(markdown(path.stem, load(path)), encoding="utf-8")


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _cells(row: dict, speedups: list[str]) -> list[str]:
    def number(key: str, form: str) -> str:
        return format(row[key], form) if key in row else ""

    ms = row.get("ms")  # none where only an error was found
    return [
        row["name"],
        f"{ms['median']:.3f}" if ms else "",
        f"{ms['min']:.3f} - {ms['max']:.3f}" if ms else "",
        number("tflops", ".0f"),
        number("gb_per_s", ",.0f"),
        number("peak_gib", ".1f"),
        number("rel_l2", ".5f"),
        number("cosine", ".6f"),
        {True: "yes", False: "NO"}.get(row.get("bit_exact"), ""),
        number("sm_mhz", "d"),
        number("watts", "d"),
        *(f"{row['speedup'][name]:.2f}" if name in row.get("speedup", {}) else "" for name in speedups),
    ]


COLUMNS = ["", "ms", "min - max", "TFLOPS", "GB/s", "peak GiB", "rel. L2", "cosine", "bits as reference", "SM MHz", "W"]


def markdown(benchmark: str, result: dict) -> str:
    """One table per shape; columns that no row fills are left out."""
    head, lines = result["header"], [f"# {benchmark}", ""]
    lines += [
        f"{head['device']}, driver {head['driver']}, torch {head['torch']}, CUDA {head['cuda']}, {head['date']}, "
    ]
    lines[-1] += f"csrc {head['csrc_commit']}. Clocks and limits: {head['clocks']}. `{head['command']}`"
    if changed := older(head):
        lines += ["", f"**Older than the sources beside it:** {', '.join(changed)} changed since. Measure again."]
    lines += ["", *(f"- {note}" for note in result["notes"]), ""]
    for shape in dict.fromkeys(row["shape"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["shape"] == shape]
        speedups = list(dict.fromkeys(name for row in rows for name in row.get("speedup", {})))
        table = [COLUMNS + [f"x {name}" for name in speedups]] + [_cells(row, speedups) for row in rows]
        kept = [i for i in range(len(table[0])) if i == 0 or any(cells[i] for cells in table[1:])]
        lines += [f"## {shape}", ""]
        for i, cells in enumerate(table):
            lines.append("| " + " | ".join(cells[column] for column in kept) + " |")
            if i == 0:
                lines.append("|" + "---|" * len(kept))
        lines.append("")
    return "\n".join(lines)


def plot(benchmark: str, result: dict) -> None:
    """Bars of the medians, one panel per shape, whiskers from minimum to maximum."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes = list(dict.fromkeys(row["shape"] for row in result["rows"]))
    figure, axes = pyplot.subplots(len(shapes), 1, figsize=(9, 1.2 + 2.6 * len(shapes)), squeeze=False)
    for axis, shape in zip(axes[:, 0], shapes, strict=True):
        rows = [row for row in result["rows"] if row["shape"] == shape and "ms" in row][::-1]
        median = [row["ms"]["median"] for row in rows]
        spread = [[m - row["ms"]["min"] for m, row in zip(median, rows, strict=True)]]
        spread.append([row["ms"]["max"] - m for m, row in zip(median, rows, strict=True)])
        axis.barh([row["name"] for row in rows], median, xerr=spread, color="#4c72b0", ecolor="#999999")
        axis.set_title(shape, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.set_xlabel("ms", fontsize=8)
    figure.suptitle(f"{benchmark}, {result['header']['device']}", fontsize=10)
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    figure.savefig(FOLDER / f"{benchmark}.png", dpi=110)
    pyplot.close(figure)
