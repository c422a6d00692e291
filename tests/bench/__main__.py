"""`python -m tests.bench` measures everything and writes tests/bench/results/. Needs a GPU with its kernels built."""

from __future__ import annotations

import argparse
import shlex
import sys

import torch

from tests.bench import attention, guard, models, preparation, results
from tests.bench.shapes import SHAPES

BENCHMARKS = {"preparation": preparation, "attention": attention, "guard": guard, "models": models}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("benchmark", nargs="*", help=f"which: {', '.join(BENCHMARKS)}; all when left out")
    parser.add_argument(
        "--shape", nargs="*", choices=SHAPES, default=list(SHAPES), help="which shapes; all when left out"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="device time for each row")
    parser.add_argument("--commit", help="commit of csrc, where the sources lie outside a repository")
    parser.add_argument("--tables", action="store_true", help="measure nothing, write the tables of what is here again")
    arguments = parser.parse_args()
    unknown = set(arguments.benchmark) - set(BENCHMARKS)
    if unknown:
        parser.error(f"benchmark: no {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    if arguments.tables:
        return results.write_tables(arguments.benchmark or list(BENCHMARKS))
    if not torch.cuda.is_available():
        parser.error("no CUDA device here")

    command = shlex.join(["python", "-m", "tests.bench", *sys.argv[1:]])
    for name in arguments.benchmark or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        rows, notes = [], list(benchmark.NOTES)
        for shape in (SHAPES[shape] for shape in arguments.shape):
            print(f"{name}: {shape}", flush=True)
            more, remarks = benchmark.run(shape, arguments.seconds)
            rows, notes = rows + more, list(dict.fromkeys(notes + remarks))
            torch.cuda.empty_cache()
            results.add_speedups(rows, getattr(benchmark, "BASELINES", ()))
            head = results.header(benchmark.UNITS, command, arguments.commit)
            results.save(name, head, rows, notes)  # after every shape: what was measured stays
        print(results.markdown(name, {"header": head, "rows": rows, "notes": notes}), flush=True)


if __name__ == "__main__":
    main()
