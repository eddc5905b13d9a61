"""The chooser: scenarios in tests/scenarios/share, and what holds for every choice."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from unidle import share
from unidle.fleet import WHOLE_PPM, Device
from unidle.jobs import Select, Share, Where
from unidle.share.choose import Choice, choose
from unidle.share.interference import Pair, PairSlowdown, known_loads
from unidle.share.mig_models import GIB, mig_models, model_of
from unidle.share.modes import GUARANTEES, Oversubscription
from unidle.share.offers import Gpu, Resident, SharePolicy, Wish
from unidle.share.refusal import OBSTACLES, PartRefused

TABLE = known_loads()
MODELS = {model.name: model for model in mig_models()}
SCENARIOS = [
    scenario
    for path in sorted((Path(__file__).parent.parent / "scenarios" / "share").glob("*.yaml"))
    for scenario in yaml.safe_load(path.read_text())
]
EVERY = frozenset({"whole", "mps", "time"})


def gpu_of(entry: dict[str, Any]) -> Gpu:
    model = entry.get("model", "NVIDIA H100 80GB HBM3")
    device = Device(entry["id"], "n", 0, entry.get("kind", "gpu"), model, entry.get("uuid", ""), 80 * GIB)
    return Gpu(device, modes=frozenset(entry.get("modes", EVERY)), mig=model_of(model, device.memory_bytes))


def wish_of(entry: dict[str, Any]) -> Wish:
    share = Share(
        int(entry.get("fraction", 0) * WHOLE_PPM),
        entry.get("memory_gib", 0) * GIB,
        entry.get("profile", ""),
        entry.get("mode", "any"),
    )
    where = Where(
        models=Select(**{k: tuple(v) for k, v in entry.get("models", {}).items()}),
        uuids=Select(**{k: tuple(v) for k, v in entry.get("uuids", {}).items()}),
    )
    limit = int(entry.get("limit", 1.5) * WHOLE_PPM)
    most = int(entry.get("most", 1) * WHOLE_PPM)
    return Wish(share, TABLE.load(entry["load"]), where, frozenset(entry.get("needs", ())), limit, most)


def policy_of(entry: dict[str, Any]) -> SharePolicy:
    over = Oversubscription(compute_ppm=int(entry.get("over", 1) * WHOLE_PPM))
    return SharePolicy(over=over, whole_instead=entry.get("whole_instead", False))


def placed(gpus: list[Gpu], found: Choice, job: str, wish: Wish) -> list[Gpu]:
    """The GPUs once the choice is carried out."""
    instance = found.plan.serve[0] if found.plan else None
    resident = Resident(job, wish.load, found.compute_ppm, found.memory_bytes, instance)
    return [
        replace(g, mode=found.mode, residents=(*g.residents, resident)) if g.device.id == found.device else g
        for g in gpus
    ]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"] for s in SCENARIOS])
def test_scenario(scenario: dict[str, Any]) -> None:
    gpus = [gpu_of(entry) for entry in scenario["gpus"]]
    for entry in scenario["rounds"]:
        wish, expected = wish_of(entry), entry["expect"]
        found = choose(wish, gpus, TABLE, policy_of(entry))
        if "refused" in expected:
            assert isinstance(found, PartRefused), found
            assert found.because.code == expected["refused"]
            told = found.because.figures
            assert {k: told.get(k, 0) for k in expected.get("figures", {})} == expected.get("figures", {})
        else:
            assert isinstance(found, Choice), found
            assert (found.device, found.mode) == (expected["gpu"], expected["mode"])
            gpus = placed(gpus, found, entry["job"], wish)


def test_the_reason_holds_the_figures_that_decided() -> None:
    gpu = gpu_of({"id": "n/0", "modes": ["mps"]})
    wish = wish_of({"fraction": 0.5, "load": "llm-decode"})
    first = choose(wish, [gpu], TABLE)
    assert isinstance(first, Choice)
    second = choose(wish, placed([gpu], first, "a", wish), TABLE, SharePolicy())
    assert isinstance(second, PartRefused)  # 1.7 times as long is beyond the limit of 1.5
    lenient = replace(wish, slowdown_limit_ppm=2_000_000)
    third = choose(lenient, placed([gpu], first, "a", wish), TABLE)
    assert isinstance(third, Choice)
    assert third.because.figures == {
        "price_ppm": 823_530, "slowdown_ppm": 1_700_000, "others_ppm": 1_700_000, "compute_ppm": 500_000,
        "memory_bytes": 40 * GIB, "beside": 1, "ways": 1, "refused": 0, "how": "modelled",
    }  # fmt: skip
    assert "1.70 times as long as alone" in third.because.text


def test_codes_of_refusals_are_words_in_sentences() -> None:
    gpus = [gpu_of({"id": "n/0", "modes": ["mps"]}), gpu_of({"id": "n/1", "modes": ["time"]})]
    found = choose(wish_of({"fraction": 0.5, "load": "notebook"}), gpus, TABLE)
    assert isinstance(found, Choice)
    assert "the other" not in found.because.text  # the GPU is empty
    assert found.because.text.endswith("; ruled out: 2 without MIG, 1 without time slices, 1 without MPS")
    none = choose(wish_of({"fraction": 0.5, "load": "notebook", "mode": "mig"}), gpus, TABLE)
    assert isinstance(none, PartRefused)
    assert none.because.text == (
        "none of 2 devices has a part for it (2 without MIG); for example: "
        "n/0 cannot be cut by mig: the fleet file allows mps only"
    )


def test_one_beside_whom_it_goes_is_named_with_what_it_loses() -> None:
    gpu, wish = gpu_of({"id": "n/0", "modes": ["mps"]}), wish_of({"fraction": 0.3, "load": "notebook"})
    first = choose(wish, [gpu], TABLE)
    assert isinstance(first, Choice)
    second = choose(wish, placed([gpu], first, "a", wish), TABLE)
    assert isinstance(second, Choice)
    assert (
        "as long as alone (modelled), the other up to 1.00 times; the only way: it costs"
        in second.because.text
    )


def test_every_code_of_a_refusal_has_its_words() -> None:
    used: set[str] = {f"no_{mode}" for mode in ("mig", "mps", "time", "quota")}
    for path in sorted(Path(share.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "refused"
            )
            if called and isinstance(node.args[0], ast.Constant):
                used.add(node.args[0].value)
    assert used - {"no_gpu"} <= set(OBSTACLES)


def test_what_was_observed_changes_the_choice() -> None:
    gpus = [gpu_of({"id": f"n/{k}", "modes": ["mps"]}) for k in range(2)]
    wish = wish_of({"fraction": 0.3, "load": "small-inference"})
    first = choose(wish, gpus, TABLE)
    assert isinstance(first, Choice)
    after = placed(gpus, first, "a", wish)
    joined = choose(wish, after, TABLE)
    assert isinstance(joined, Choice) and joined.device == "n/0"
    pair: Pair = ("mps", "small-inference", "small-inference")
    learnt = replace(TABLE, seen={**TABLE.seen, pair: PairSlowdown(3_000_000, 10)})
    apart = choose(wish, after, learnt)
    assert isinstance(apart, Choice) and apart.device == "n/1"


loads = st.sampled_from(sorted(TABLE.loads))
entries = st.fixed_dictionaries(
    {
        "fraction": st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.9]),
        "load": loads,
        "needs": st.lists(st.sampled_from(["memory", "fault", "bandwidth"]), max_size=2, unique=True),
        "limit": st.sampled_from([1.1, 1.5, 3, 10]),
        "mode": st.sampled_from(["any", "any", "mig", "mps", "time"]),
    }
)


@given(st.lists(entries, max_size=12), st.sampled_from([1, 1.5, 2]))
def test_no_gpu_is_promised_beyond_the_factor_and_no_limit_is_passed(
    wishes: list[dict[str, Any]], over: float
) -> None:
    gpus = [gpu_of({"id": f"n/{k}", "modes": ["mig", "mps", "time"]}) for k in range(3)]
    policy = policy_of({"over": over})
    for k, entry in enumerate(wishes):
        wish = wish_of(entry)
        found = choose(wish, gpus, TABLE, policy)
        assert found == choose(wish, gpus, TABLE, policy)
        if isinstance(found, PartRefused):
            assert found.because.text
            continue
        assert wish.needs <= GUARANTEES[found.mode]
        assert max(found.slowdown_ppm, found.worst_other_ppm) <= wish.slowdown_limit_ppm
        before = next(g for g in gpus if g.device.id == found.device)
        assert before.mode in (None, found.mode)
        if found.mode == "mig":
            assert found.plan is not None and not found.plan.destroy
        gpus = placed(gpus, found, f"j{k}", wish)
    for gpu in gpus:
        limit = policy.over.compute_ppm if gpu.mode != "mig" else WHOLE_PPM
        assert sum(r.compute_ppm for r in gpu.residents) <= limit
        if gpu.mode != "mig":
            assert sum(r.memory_bytes for r in gpu.residents) <= gpu.device.memory_bytes


@given(st.lists(entries, max_size=8), entries)
def test_pricing_one_gpu_of_each_kind_is_as_good_as_pricing_all(
    wishes: list[dict[str, Any]], last: dict[str, Any]
) -> None:
    gpus = [gpu_of({"id": f"n/{k}", "modes": ["mig", "mps", "time"]}) for k in range(4)]
    for k, entry in enumerate(wishes):
        found = choose(wish_of(entry), gpus, TABLE)
        if isinstance(found, Choice):
            gpus = placed(gpus, found, f"j{k}", wish_of(entry))
    wish = wish_of(last)
    each = [choose(wish, [gpu], TABLE) for gpu in gpus]
    order = ("mig", "mps", "time", "whole")
    best = min(
        ((c.price_ppm, order.index(c.mode), k) for k, c in enumerate(each) if isinstance(c, Choice)),
        default=None,
    )
    found = choose(wish, gpus, TABLE)
    if best is None:
        assert isinstance(found, PartRefused)
    else:
        assert isinstance(found, Choice)
        assert (found.price_ppm, order.index(found.mode), gpus.index(_of(gpus, found))) == best


def _of(gpus: list[Gpu], found: Choice) -> Gpu:
    return next(gpu for gpu in gpus if gpu.device.id == found.device)
