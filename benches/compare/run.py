#!/usr/bin/env python3
"""Benchmarks of anabranch and other frameworks (peers): the same work, interleaved, in one table.

To install the peers, run these commands in the root of the repository. They need 6.4 GB, most of it
libraries for GPUs, without which PyTorch from the package index cannot be imported.

    python3 -m venv target/peers
    target/peers/bin/pip install numpy "jax[cpu]==0.10.2" tensorflow-cpu==2.21.0
    target/peers/bin/pip install --no-deps torch==2.15.0
    target/peers/bin/pip install filelock typing-extensions sympy networkx jinja2 fsspec setuptools cuda-bindings \\
        "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.2.2" \\
        nvidia-cudnn-cu13==9.26.0.51 nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvshmem-cu13==3.7.2
    export RUSTFLAGS="-C target-cpu=native"                        # for the peers; anabranch selects kernels at run time
    cargo install --locked --path benches/compare/with_burn --root target/peers --target-dir target/peers/build
    cargo install --locked --path benches/compare/with_candle --root target/peers --target-dir target/peers/build
    unset RUSTFLAGS

Peers that are not installed are left out. `torch.compile` needs a C++ compiler, and a few minutes
more in the first run. Then:

    target/peers/bin/python benches/compare/run.py                 # all cases, all peers
    target/peers/bin/python benches/compare/run.py --continue      # continues an interrupted run
    target/peers/bin/python benches/compare/run.py --rounds 5 lstm mlp
    target/peers/bin/python benches/compare/run.py --peers jax,burn conv
    target/peers/bin/python benches/compare/run.py --quick         # each case once, without measuring

Each round runs a case with anabranch and then with each peer, so a disturbance of the machine
affects all of them. The table has the median of the rounds' medians and, in parentheses, the best
time. The ratio is anabranch's time or memory divided by that of the best peer. The measurements are
also written to `target/compare.jsonl`, one line for each case of each program.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "target" / "compare.jsonl"
BESIDE_PYTHON = pathlib.Path(sys.executable).parent
PEERS = {
    "jax": [sys.executable, "with_jax.py"],
    "tensorflow": [sys.executable, "with_tensorflow.py"],
    "tensorflow-xla": [sys.executable, "with_tensorflow.py", "xla"],
    "torch": [sys.executable, "with_torch.py"],
    "torch-compile": [sys.executable, "with_torch.py", "compile"],
    "burn": [str(BESIDE_PYTHON / "with_burn")],
    "candle": [str(BESIDE_PYTHON / "with_candle")],
}
# The benchmark that contains the case, and the divisor of its time.
CASES = {
    "scalar_while": ("control_flow", 100_000),
    "nested_while_with_a_branch": ("control_flow", 10_000),
    "gradient_of_1000_trips": ("control_flow", 1),
    "call_of_one_op": ("control_flow", 1),
    "tanh_of_a_64x64_product_in_a_while": ("control_flow", 2_000),
    "mandelbrot_1024": ("examples", 1),
    "plain_mandelbrot_1024": ("examples", 1),
    "collatz_1_000_000": ("examples", 1),
    "plain_collatz_1_000_000": ("examples", 1),
    "newton_1_000_000": ("examples", 1),
    "plain_newton_1_000_000": ("examples", 1),
    "newton_1_000_000_gradient": ("examples", 1),
    "plain_newton_1_000_000_gradient": ("examples", 1),
    "sequences_1000": ("examples", 1),
    "plain_sequences_1000": ("examples", 1),
    "sequences_1000_gradient": ("examples", 1),
    "plain_sequences_1000_gradient": ("examples", 1),
    "hidden_markov_1000": ("examples", 1),
    "plain_hidden_markov_1000": ("examples", 1),
    "hidden_markov_1000_gradient": ("examples", 1),
    "plain_hidden_markov_1000_gradient": ("examples", 1),
    "van_der_pol_1000": ("examples", 1),
    "van_der_pol_1000_gradient": ("examples", 1),
    "lstm_512_batch_32_steps_50": ("training", 1),
    "lstm_512_batch_32_steps_200": ("training", 1),
    "lstm_512_batch_128_steps_50": ("training", 1),
    "lstm_512_batch_128_steps_200": ("training", 1),
    "mlp_784_1024_1024_10_batch_128": ("training", 1),
    "lenet_batch_64_sgd": ("vision", 1),
    "cifar_quick_batch_100_sgd": ("vision", 1),
    "conv_3x3_64_on_56x56_batch_8_forward": ("vision", 1),
    "conv_3x3_64_on_56x56_batch_8_forward_backward": ("vision", 1),
    "two_conv_3x3_relu_forward": ("vision", 1),
    "two_conv_3x3_relu_forward_backward": ("vision", 1),
    "transformer_4_blocks_256_forward_and_backward": ("tables", 1),
    "product_256x256x256": ("products", 1),
    "product_512x512x512": ("products", 1),
    "product_1024x1024x1024": ("products", 1),
    "product_2048x2048x2048": ("products", 1),
    "product_256x256x256_in_bf16": ("products", 1),
    "product_512x512x512_in_bf16": ("products", 1),
    "product_1024x1024x1024_in_bf16": ("products", 1),
    "product_2048x2048x2048_in_bf16": ("products", 1),
    "plain_triad_10_000_000": ("memory", 1),
    "tanh_chain_10_000_000": ("memory", 1),
    "plain_read_10_000_000": ("memory", 1),
    "sum_10_000_000": ("memory", 1),
    "softmax_4096_1024": ("memory", 1),
    "layer_norm_4096_1024": ("memory", 1),
    "gather_8192_of_100000_x_64": ("tables", 1),
    "sgd_of_8192_of_100000_x_64": ("tables", 1),
    "startup": ("startup", 1),
}
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
# The peers run on the CPU, too.
ENVIRONMENT = os.environ | {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}


def ours(case, quick):
    """Returns the measurement of one of anabranch's benchmarks: seconds or memory."""
    bench, _ = CASES[case]
    # Benchmarks match a part of a name. The regular expressions distinguish names with one prefix.
    command = ["cargo", "bench", "-q", "--bench", bench, "--", case]
    if bench not in ("products", "startup"):
        command += ["--color", "never", *(["--sample-count", "1"] if quick else [])]
    text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    if bench == "startup":
        median, best = re.search(r"median ([\d.]+) ms, best ([\d.]+) ms", text).groups()
        peak = float(text.split()[-1]) * 2**20
        return {"median": float(median) * 1e-3, "best": float(best) * 1e-3, "peak": peak}
    for line in text.splitlines():
        if found := re.match(rf"{case} +([\d.]+) \( *([\d.]+)\), +(\d+) %", line):
            median, best = (operations(case) / float(rate) * 1e-9 for rate in found.groups()[:2])
            return {"median": median, "best": best, "of_peak": int(found[3])}
        found = re.match(r"[├╰]─ (\w+) +(.*)", line)
        if found and found[1] == case:
            best, _, median = re.findall(r"([\d.]+) (ns|µs|ms|s)\b", found[2])[:3]
            return {key: float(n) * UNITS[unit] for key, (n, unit) in (("median", median), ("best", best))}
    raise SystemExit(f"`{' '.join(command)}` has no line for {case}:\n{text}")


def theirs(peer, case, quick):
    """Returns the measurement of a peer, with its name, or None if it does not have the case."""
    command = [*PEERS[peer], case, *(["--quick"] if quick else [])]
    runs = 3 if case == "startup" and not quick else 1
    results, waits = [], []
    for _ in range(runs):
        start = time.perf_counter()
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE, env=ENVIRONMENT
        )
        output, errors = program.communicate()
        waits.append(time.perf_counter() - start)
        results += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if program.returncode != 0:
            print(f"{' '.join(command)} failed:\n{errors[-2000:]}", file=sys.stderr)
    if case == "startup" and results:
        # From before the start of the process to its end, as for anabranch.
        return results[0] | {"median": statistics.median(waits), "best": min(waits)}
    return results[0] if results else None


def is_there(peer):
    program = PEERS[peer][0]
    return importlib.util.find_spec(peer.split("-")[0]) if program == sys.executable else os.path.exists(program)


def operations(case):
    """Returns the number of multiplications and additions of a matmul of square matrices."""
    return 2 * int(case.split("x")[1]) ** 3


def shown(case, seconds):
    if case.startswith("product_"):
        return f"{operations(case) / seconds * 1e-9:.0f} GFLOP/s"
    unit = next(unit for unit in ("s", "ms", "µs", "ns") if seconds >= UNITS[unit] or unit == "ns")
    return f"{seconds / UNITS[unit]:.3g} {unit}"


def row(case, what, results, names, cell):
    """Returns a line of the table: the values of `what`, and the ratio to the best peer."""
    of = {name: [r for r in results if r["peer"] == name and r["case"] == case and what in r] for name in names}
    middle = {name: statistics.median(r[what] for r in runs) for name, runs in of.items() if runs}
    others = [value for name, value in middle.items() if name != "anabranch"]
    ratio = f"{middle['anabranch'] / min(others):.2f}" if others and "anabranch" in middle else "-"
    return [cell(middle[name], of[name]) if name in middle else "-" for name in names] + [ratio]


def table(cases, results):
    names = list(dict.fromkeys(r["peer"] for r in results))
    yield ["case", *names, "ratio to the best peer"]
    yield ["---"] * (len(names) + 2)
    for case in cases:
        per = CASES[case][1]

        def timed(median, runs):
            part = f", {statistics.median(r['of_peak'] for r in runs):.0f} % of the peak" if "of_peak" in runs[0] else ""
            return f"{shown(case, median / per)} ({shown(case, min(r['best'] for r in runs) / per)}){part}"

        yield [case, *row(case, "median", results, names, timed)]
        if case == "startup":
            yield ["startup, peak of memory", *row(case, "peak", results, names, lambda m, _: f"{m / 2**20:.0f} MiB")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="parts of names of cases; all cases if there are none")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas")
    parser.add_argument("--quick", action="store_true", help="each case once, which measures nothing")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="keep what the last run has measured")
    options = parser.parse_args()
    peers = [p for p in options.peers.split(",") if p and is_there(p)]
    cases = [c for c in CASES if not options.cases or any(part in c for part in options.cases)]
    if not cases:
        raise SystemExit(f"no case has {options.cases} in its name: {', '.join(CASES)}")
    RESULTS.parent.mkdir(exist_ok=True)
    if not options.goes_on:
        RESULTS.write_text("")
    results = [json.loads(line) for line in RESULTS.open()]
    done = {(r["case"], r["round"], r["program"]) for r in results}
    subprocess.run(["cargo", "bench", "-q", "--no-run"], check=True, cwd=ROOT)
    for case in cases:
        for turn in range(options.rounds):
            for program in ["anabranch", *([] if case.startswith("plain_") else peers)]:
                if (case, turn, program) in done:
                    continue
                one = ours(case, options.quick) if program == "anabranch" else theirs(program, case, options.quick)
                if one is None:
                    continue
                one = {"peer": "anabranch", "case": case, "round": turn, "program": program} | one
                results.append(one)
                with RESULTS.open("a") as file:
                    print(json.dumps(one), file=file)
                print(f"{case}, {one['peer']}: {shown(case, one['median'] / CASES[case][1])}", file=sys.stderr)
    for cells in table(cases, results):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
