"""The demo of fill: a pipeline trains twice, the second time with a service that prefills in its waits.

    make demo-fill
    make demo-fill ARGS="--steps 60"

A small language model is trained first, for the service. Then four paced stages train, without fillers and with them, and the official client
of OpenAI sends prompts as long as they train. In the end all losses of both runs are compared to the bit, and both ledgers are shown. The exit code is
1 where a loss or an answer is missing or different. Needs root, or a delegated `cpu` controller. A directory below .cache/demo has what it wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from demo import ROOT, tell

TEXTS = sorted((ROOT / "docs").glob("*.md"))
CLIENTS = 8
PROMPT_CHARACTERS = 4000
TOKENS = 12
LIMIT_S = 60
BAR = 24


@dataclass
class Answers:
    """What the service answered, by question; ``wrong``: what went wrong."""

    texts: dict[str, str] = field(default_factory=dict)
    count: int = 0
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo_fill.py", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="training steps (default 60)")
    parser.add_argument(
        "--directory", type=Path, help="where it writes (default: a new one below .cache/demo)"
    )
    given = parser.parse_args()
    place: Path = given.directory or ROOT / ".cache" / "demo" / time.strftime("fill-%Y%m%d-%H%M%S")
    place.mkdir(parents=True)
    begun = time.monotonic()
    code = played(place, given.steps)
    tell(f"{time.monotonic() - begun:.0f} s; all of it is in {shown(place)}")
    sys.exit(code)


def played(place: Path, steps: int) -> int:
    """The demo itself; its exit code."""
    tell("a small language model learns from docs/*.md, for the service")
    made = [sys.executable, str(ROOT / "examples" / "fill" / "small_model.py"), str(place / "small")]
    quiet = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([*made, *map(str, TEXTS)], check=True, env=quiet, stderr=subprocess.DEVNULL)

    tell(f"before: four stages train for {steps} steps; nobody uses their waits")
    with training(place, steps) as run:
        ended(run)
    [before] = jobs(place)
    tell("after: the same training again, and a service that prefills in its waits")
    after, answers, routes = filled(place, steps)
    if not answers.wrong and not in_waits(routes):
        tell("it ended before a filler had loaded its model, as this machine is busy: once more, for longer")
        after, answers, routes = filled(place, 4 * steps)
    wrong = answers.wrong + show_answers(answers, routes)
    wrong += compared(place, before, after)
    show_ledgers(place, before, after)
    tell(f"unidle fill proof {after} --against {before}")
    subprocess.run(
        unidle("fill", "proof", after, "--against", before, "--store", str(place / "demo.db")), check=False
    )
    for line in wrong:
        tell(f"this went wrong: {line}")
    return 1 if wrong else 0


def filled(place: Path, steps: int) -> tuple[str, Answers, dict[str, float]]:
    """Train with a service next to it: the job, the answers, the service's metrics."""
    known = jobs(place)
    with ExitStack() as stack:
        run = stack.enter_context(training(place, steps))
        job = started(place, run, known)
        server, url = served(place, job, run, stack)
        answers = asked(url, run) if url else Answers()
        ended(run)
        values = metrics(url) if url else {}
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT_S)
    return job, answers, values


def training(place: Path, steps: int) -> subprocess.Popen[bytes]:
    """``unidle span run`` of the pipeline; its output goes to a file."""
    file = ROOT / "examples" / "fill" / "pipeline.yaml"
    words = unidle(
        "span", "run", str(file), "--no-namespaces", "--steps", str(steps), "--store", str(place / "demo.db")
    )
    with (place / "train.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def ended(run: subprocess.Popen[bytes]) -> None:
    if run.wait() != 0:
        sys.exit("demo: training failed; see train.log")


def jobs(place: Path) -> list[str]:
    """Ids of all jobs of the store, as far as there is one."""
    words = unidle("list", "--all", "--json", "--store", str(place / "demo.db"))
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return [job["job"] for job in json.loads(done.stdout or "[]")]


def started(place: Path, run: subprocess.Popen[bytes], known: list[str]) -> str:
    """The id of the new job."""
    while not (found := [job for job in jobs(place) if job not in known]):
        if run.poll() is not None:
            sys.exit(f"demo: training did not start; see {shown(place / 'train.log')}")
    return found[0]


def served(
    place: Path, job: str, run: subprocess.Popen[bytes], stack: ExitStack
) -> tuple[subprocess.Popen[bytes], str]:
    """The service, and its address once it is ready; empty if training ended before. Its decoding gives way to training by ``nice``."""
    words = unidle(
        "fill", "serve", "--model", str(place / "small"), "--port", "0", "--job", job, "--store", str(place / "demo.db"),
        "--chunk-tokens", "64", "--threads", "1", "--slo-ttft", "20", "--no-trial",
    )  # fmt: skip
    tell("unidle " + " ".join(words[4:]))
    log = place / "serve.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            ["nice", "-n", "5", *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    stack.callback(stopped, server)
    while not (found := re.search(r"http://\S+", log.read_text())):
        if run.poll() is not None:
            return server, ""
        if server.poll() is not None and "the job has" not in log.read_text():
            sys.exit(f"demo: the service did not start: {log.read_text()}")
        time.sleep(0.1)
    return server, found[0].removesuffix(";")


def asked(url: str, run: subprocess.Popen[bytes]) -> Answers:
    """Ask by the official client as long as training runs, and once more after it."""
    answers, over, lock = Answers(), threading.Event(), threading.Lock()
    texts = [path.read_text(encoding="utf-8") for path in TEXTS]
    askers = [
        threading.Thread(target=ask, args=(url, texts[k:] + texts[:k], answers, lock, over))
        for k in range(CLIENTS)
    ]
    for each in askers:
        each.start()
    run.wait()
    over.set()
    for each in askers:
        each.join()
    return answers


def ask(url: str, texts: list[str], answers: Answers, lock: threading.Lock, over: threading.Event) -> None:
    """One client: the same question has the same answer each time, wherever it was prefilled."""
    from openai import OpenAI, OpenAIError

    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    turn = 0
    while not over.is_set():
        prompt = texts[turn % len(texts)][:PROMPT_CHARACTERS]
        turn += 1
        try:
            parts = client.completions.create(
                model="small", prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
            )
            found = "".join(part.choices[0].text for part in parts if part.choices)
        except OpenAIError as error:
            with lock:
                answers.wrong.append(f"the service answered {error}")
            return
        with lock:
            answers.count += 1
            if answers.texts.setdefault(prompt, found) != found:
                answers.wrong.append("the same prompt has two answers")


def metrics(url: str) -> dict[str, float]:
    """Values of the service's metrics, by name and labels."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def show_answers(answers: Answers, values: dict[str, float]) -> list[str]:
    """Print some of them, and where their prompts were prefilled; what is missing."""
    tell("answers, through the client of OpenAI")
    for prompt, text in list(answers.texts.items())[:3]:
        print(f"  ... {prompt[-40:]!r}\n      {text!r}")
    counts = routes_of(values)
    print(
        f"{answers.count} answers; {counts['bubbles']} prompts prefilled in waits, {counts['dedicated']} on the dedicated device"
    )
    if counts["bubbles"]:
        return []
    return ["no prompt was prefilled in waits; fillers give way to other load, so the machine has to be idle"]


def routes_of(values: dict[str, float]) -> Counter[str]:
    """How many prompts took each route."""
    counts = Counter[str]()
    for name, value in values.items():
        if name.startswith("unidle_fill_requests_total") and (route := re.search(r'route="(\w+)"', name)):
            counts[route[1]] += int(value)
    return counts


def in_waits(values: dict[str, float]) -> int:
    return routes_of(values)["bubbles"]


def compared(place: Path, before: str, after: str) -> list[str]:
    """Print the losses of both runs; what is different."""
    from unidle.fill.cli.proof import losses_of

    state = place / "demo.db.d"
    one, other = losses_of(state, before), losses_of(state, after)
    tell("the loss curve of both runs")
    for step in sorted(one)[:: max(len(one) // 6, 1)]:
        print(f"  step {step:4}   before {one[step]:22} after {other.get(step, '-'):22}")
    if not one or any(other.get(step) != loss for step, loss in one.items()):
        return [f"losses of {len(one)} and {len(other)} steps differ"]
    print(f"All {len(one)} losses are equal to the bit.")
    return []


def show_ledgers(place: Path, before: str, after: str) -> None:
    """Both waterfalls next to each other, and the length of a step."""
    parts = [ledger_of(place, job) for job in (before, after)]
    tell("where the time of the four devices went")
    print(f"  {'':24}{'before':{BAR + 9}}after")
    for leaf in sorted(parts[0].keys() | parts[1].keys(), key=lambda leaf: -parts[0].get(leaf, 0.0)):
        cells = [bar(each.get(leaf, 0.0)) for each in parts]
        print(f"  {leaf:24}{cells[0]}  {cells[1]}".rstrip())
    steps = [step_ms(place, job) for job in (before, after)]
    print(f"  a step, median: {steps[0]:.1f} ms before, {steps[1]:.1f} ms after")


def bar(part: float) -> str:
    return f"{100 * part:5.1f} % {'█' * round(part * BAR) + '·' * (BAR - round(part * BAR))}"


def ledger_of(place: Path, job: str) -> dict[str, float]:
    """The part of each leaf in the time of a job."""
    words = unidle("ledger", "--job", job, "--json", "--store", str(place / "demo.db"))
    found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    times = Counter[str]()
    for leaf in found["leaves"]:
        times[leaf["leaf"]] += leaf["ns"]
    return {leaf: ns / max(times.total(), 1) for leaf, ns in times.items() if ns}


def step_ms(place: Path, job: str) -> float:
    """The median step of the first rank."""
    from unidle.api.stores import read_store, read_view

    store = read_store(str(place / "demo.db"))
    try:
        ends = read_view(store).jobs[job].attempts[-1].ranks[0].step_ns
    finally:
        store.close()
    lengths = [(end - begin) / 1e6 for begin, end in pairwise(ends)]
    return statistics.median(lengths) if lengths else 0.0


def unidle(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "unidle", *words]


def stopped(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL where that is not enough."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    main()
