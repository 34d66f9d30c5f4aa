#!/usr/bin/env python3
"""The table of our benchmarks next to those of peers: the same work, on the same machine, in turn.

    python3 -m venv target/peers && target/peers/bin/pip install "jax[cpu]==0.10.2" tensorflow-cpu==2.21.0
    target/peers/bin/python benches/compare/run.py                 # all cases, all peers that can be imported
    target/peers/bin/python benches/compare/run.py --rounds 5 lstm mlp
    target/peers/bin/python benches/compare/run.py --peers jax conv

Each round runs a case with us and then with each peer, so that what disturbs the machine for a while disturbs all of them. The table has the median
of the rounds' medians, and in parentheses the best time of all; the ratio is ours divided by that of the fastest peer.
"""

import argparse
import importlib.util
import json
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PEERS = {
    "jax": ["with_jax.py"],
    "tensorflow": ["with_tensorflow.py"],
    "tensorflow-xla": ["with_tensorflow.py", "xla"],
}
# The benchmark that has the case, and by how many a time is divided.
CASES = {
    "scalar_while": ("control_flow", 100_000),
    "nested_while_with_a_branch": ("control_flow", 10_000),
    "gradient_of_1000_trips": ("control_flow", 1),
    "call_of_one_op": ("control_flow", 1),
    "tanh_of_a_64x64_product_in_a_while": ("control_flow", 2_000),
    "lstm_512_batch_32_steps_50": ("training", 1),
    "mlp_784_1024_1024_10_batch_128": ("training", 1),
    "conv_3x3_64_on_56x56_batch_8_forward": ("vision", 1),
    "conv_3x3_64_on_56x56_batch_8_forward_backward": ("vision", 1),
    "lenet_batch_64_sgd": ("vision", 1),
    "cifar_quick_batch_100_sgd": ("vision", 1),
    "softmax_4096_1024": ("memory", 1),
    "layer_norm_4096_1024": ("memory", 1),
    "sum_10_000_000": ("memory", 1),
    "tanh_chain_10_000_000": ("memory", 1),
}
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def ours(case):
    """The best and the median time of one of our benchmarks, in seconds."""
    bench, _ = CASES[case]
    # divan takes a part of a name; the regular expression keeps names apart that begin alike.
    command = ["cargo", "bench", "-q", "--bench", bench, "--", case, "--color", "never"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        found = re.match(r"[├╰]─ (\w+) +(.*)", line)
        if found and found[1] == case:
            best, _, median = re.findall(r"([\d.]+) (ns|µs|ms|s)\b", found[2])[:3]
            return [float(number) * UNITS[unit] for number, unit in (best, median)]
    raise SystemExit(f"`{' '.join(command)}` has no line for {case}:\n{text}")


def theirs(program, case):
    """The same of a peer, with its name; None if it does not have the case."""
    command = [sys.executable, str(HERE / program[0]), *program[1:], case]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    lines = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith("{")]
    if outcome.returncode != 0:
        print(f"{' '.join(command)} failed:\n{outcome.stderr[-2000:]}", file=sys.stderr)
    return (lines[0]["peer"], [lines[0]["min"], lines[0]["median"]]) if lines else None


def shown(seconds):
    unit = next(unit for unit in ("s", "ms", "µs", "ns") if seconds >= UNITS[unit] or unit == "ns")
    return f"{seconds / UNITS[unit]:.3g} {unit}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="parts of names of cases; all cases if there are none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas")
    options = parser.parse_args()
    peers = [p for p in options.peers.split(",") if importlib.util.find_spec(p.split("-")[0])]
    cases = [c for c in CASES if not options.cases or any(part in c for part in options.cases)]
    if not cases:
        raise SystemExit(f"no case has {options.cases} in its name: {', '.join(CASES)}")
    times = {}
    for case in cases:
        for _ in range(options.rounds):
            results = [("anabranch", ours(case)), *(theirs(PEERS[p], case) for p in peers)]
            for result in filter(None, results):
                times.setdefault((case, result[0]), []).append(result[1])
    names = list(dict.fromkeys(name for _, name in times))
    print(f"| case | {' | '.join(names)} | ratio to the best peer |")
    print("|---" * (len(names) + 2) + "|")
    for case in cases:
        cells, medians = [], {}
        for name in names:
            runs = times.get((case, name))
            if runs is None:
                cells.append("-")
                continue
            per = CASES[case][1]
            medians[name] = statistics.median(median for _, median in runs) / per
            cells.append(f"{shown(medians[name])} ({shown(min(best for best, _ in runs) / per)})")
        others = [t for name, t in medians.items() if name != "anabranch"]
        ratio = f"{medians['anabranch'] / min(others):.2f}" if others else "-"
        print(f"| {case} | {' | '.join(cells)} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
