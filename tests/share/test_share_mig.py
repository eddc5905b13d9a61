"""MIG instances stand where NVIDIA's manual lets them, and those in use never move."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches import bench_module
from unidle.errors import BadInput
from unidle.share.mig import Reconfiguration, fits, layouts, openness, reconfigure
from unidle.share.mig_models import GIB, Instance, MigModel, mig_models, model_of, parse_models
from unidle.share.refusal import PartRefused

MODELS = {model.name: model for model in mig_models()}
H100 = MODELS["H100 80GB"]
A30 = MODELS["A30"]
POOL = bench_module("_mig_pool")
MigPool, Spot = POOL.MigPool, POOL.Spot


def plan(
    wanted: str, in_use: str = "", idle: str = "", *, model: MigModel = H100, dynamic: bool = True
) -> Reconfiguration:
    found = reconfigure(model, wanted.split(), at(in_use), at(idle), dynamic=dynamic)
    assert isinstance(found, Reconfiguration), found
    return found


def refusal(
    wanted: str, in_use: str = "", idle: str = "", *, model: MigModel = H100, dynamic: bool = True
) -> PartRefused:
    found = reconfigure(model, wanted.split(), at(in_use), at(idle), dynamic=dynamic)
    assert isinstance(found, PartRefused), found
    return found


def at(text: str) -> list[Instance]:
    """``3g.40gb@4 1g.10gb@0`` as instances."""
    pairs = (word.split("@") for word in text.split())
    return [Instance(profile, int(start)) for profile, start in pairs]


# -- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_as_many_instances_fit_as_the_manual_says_and_not_one_more(model: MigModel) -> None:
    for profile in model.profiles:
        assert fits(model, [profile.name] * profile.most)
        assert not fits(model, [profile.name] * (profile.most + 1))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_table_agrees_with_the_names_of_its_profiles(model: MigModel) -> None:
    assert len({p.id for p in model.profiles}) == len({p.name for p in model.profiles}) == len(model.profiles)
    whole = int(model.profiles[-1].name.split(".")[1][:-2])
    for profile in model.profiles:
        compute, memory = profile.name.removesuffix("+me").removesuffix("gb").split("g.")
        assert int(compute) == profile.compute
        assert abs(int(memory) - whole * profile.memory / model.memory) < 1.5  # names are rounded
        assert model.bytes_of(profile) < int(memory) * GIB


def test_every_model_of_the_issue_is_there() -> None:
    assert set(MODELS) == {
        "A30", "A100 40GB", "A100 80GB", "H100 80GB", "H100 94GB", "H100 96GB", "H200", "B200",
    }  # fmt: skip
    assert {m.name: (m.compute, m.memory) for m in MODELS.values() if m.compute != 7} == {"A30": (4, 4)}


@pytest.mark.parametrize(
    ("name", "gib", "model"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100 80GB"),
        ("NVIDIA H100 NVL", 93.6, "H100 94GB"),
        ("NVIDIA GH200 480GB", 95.6, "H100 96GB"),
        ("H100", 96, "H100 96GB"),
        ("H100", 94, "H100 94GB"),
        ("H100", 80, "H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", 40, "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", 80, "A100 80GB"),
        ("NVIDIA A30", 24, "A30"),
        ("NVIDIA H200", 140.4, "H200"),
        ("NVIDIA B200", 179.1, "B200"),
        ("H100 80GB", 0, "H100 80GB"),
        ("H100", 0, None),
        ("NVIDIA L40S", 45, None),
        ("NVIDIA H100 80GB HBM3", 40, None),
        ("cpu", 0, None),
    ],
)
def test_a_gpu_is_known_by_its_name_and_memory(name: str, gib: float, model: str | None) -> None:
    found = model_of(name, int(gib * GIB))
    assert (found and found.name) == model


def test_a_table_that_contradicts_itself_is_refused() -> None:
    text = """
[[model]]
name = "X"
names = ["X"]
memory_gib = [1, 2]
compute = 7
memory = 8
slice_mib = 1
profile = [{ name = "3g.1gb", id = 9, compute = 3, memory = 4, starts = [5], most = 1 }]
"""
    with pytest.raises(BadInput, match="8 memory slices"):
        parse_models(text)


def test_known_full_cuts_of_the_manual_fit() -> None:
    for cut in ("4g.40gb 3g.40gb", "2g.20gb 2g.20gb 3g.40gb", "1g.10gb 1g.10gb 2g.20gb 3g.40gb", "4g.40gb 2g.20gb 1g.10gb", "3g.40gb 3g.40gb"):  # fmt: skip
        assert fits(H100, cut.split())
    assert not fits(H100, ["4g.40gb", "4g.40gb"])
    assert not fits(H100, ["2g.20gb"] * 4)
    assert not fits(A30, ["2g.12gb", "2g.12gb", "1g.6gb"])


# -- where an instance goes ----------------------------------------------------------------------


def test_a_small_instance_goes_where_it_spoils_nothing_larger() -> None:
    assert plan("1g.10gb").serve == (Instance("1g.10gb", 6),)
    assert plan("3g.40gb").serve == (Instance("3g.40gb", 4),)  # 4g has only one place, at 0


def test_instances_in_use_stay_and_the_new_one_goes_beside_them() -> None:
    found = plan("3g.40gb", in_use="1g.10gb@0 2g.20gb@2")
    assert (found.serve, found.destroy) == ((Instance("3g.40gb", 4),), ())


def test_what_must_end_first_is_named_when_there_is_no_room() -> None:
    found = refusal("4g.40gb", in_use="1g.10gb@2 1g.10gb@5")
    assert found.because.code == "mig_no_room"
    assert found.because.figures["would_help"] == "1g.10gb at 2"
    assert found.because.figures["free_slices"] == 6


def test_what_never_fits_is_told_from_what_does_not_fit_now() -> None:
    assert refusal("4g.40gb 4g.40gb").because.code == "mig_never_fits"
    assert refusal("9g.90gb").because.code == "mig_no_profile"


def test_an_idle_instance_of_the_same_profile_is_used_again() -> None:
    found = plan("2g.20gb", in_use="1g.10gb@6", idle="2g.20gb@0 1g.10gb@4")
    assert (found.serve, found.create, found.destroy) == ((Instance("2g.20gb", 0),), (), ())


def test_only_idle_instances_in_the_way_are_destroyed() -> None:
    found = plan("3g.40gb", in_use="1g.10gb@0", idle="1g.10gb@1 1g.10gb@5")
    assert (found.serve, found.destroy) == ((Instance("3g.40gb", 4),), (Instance("1g.10gb", 5),))


def test_static_means_these_and_no_others_on_a_gpu_that_nobody_uses() -> None:
    found = plan("3g.40gb 4g.40gb", idle="4g.40gb@0 1g.10gb@6", dynamic=False)
    assert found.destroy == (Instance("1g.10gb", 6),)
    assert found.create == (Instance("3g.40gb", 4),)
    assert plan("", idle="1g.10gb@6", dynamic=False).destroy == (Instance("1g.10gb", 6),)
    assert refusal("3g.40gb", in_use="1g.10gb@0", dynamic=False).because.code == "mig_in_use"


def test_the_media_engines_go_to_one_instance_only() -> None:
    assert refusal("1g.10gb+me", in_use="1g.10gb+me@6").because.figures["would_help"] == "1g.10gb+me at 6"
    found = plan("1g.10gb+me", idle="1g.10gb+me@3")
    assert (found.create, found.destroy) == ((), ())
    assert plan("2g.12gb+me", idle="1g.6gb+me@3", model=A30).destroy == (Instance("1g.6gb+me", 3),)


def test_instances_that_cannot_stand_together_are_bad_input() -> None:
    for text in ("3g.40gb@4 1g.10gb@5", "3g.40gb@2", "8g.1gb@0"):
        with pytest.raises(BadInput):
            reconfigure(H100, ["1g.10gb"], at(text))


# -- properties ----------------------------------------------------------------------------------


@st.composite
def standing(draw: st.DrawFn) -> tuple[MigModel, list[Instance]]:
    """A model, and instances that stand on it as any history may have left them."""
    model = draw(st.sampled_from(list(MODELS.values())))
    mask, found, media = 0, [], False
    for _ in range(draw(st.integers(0, 7))):
        profile = draw(st.sampled_from(model.profiles))
        start = draw(st.sampled_from(profile.starts))
        if not profile.mask(start) & mask and not (media and profile.media):
            mask |= profile.mask(start)
            media |= profile.media
            found.append(Instance(profile.name, start))
    return model, found


def wishes(model: MigModel) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([p.name for p in model.profiles]), max_size=4)


@given(st.data())
def test_a_plan_keeps_every_rule_and_is_found_whenever_there_is_one(data: st.DataObject) -> None:
    model, there = data.draw(standing())
    cut = data.draw(st.integers(0, len(there)))
    in_use, idle = there[:cut], there[cut:]
    wanted = data.draw(wishes(model))
    found = reconfigure(model, wanted, in_use, idle)
    assert found == reconfigure(model, wanted, in_use, idle)
    assert isinstance(found, Reconfiguration) == _by_trying_all(model, wanted, in_use)
    if isinstance(found, PartRefused):
        return
    assert [i.profile for i in found.serve] == wanted
    after = [*in_use, *(i for i in idle if i not in found.destroy), *found.create]
    assert set(found.destroy) <= set(idle) and not set(found.destroy) & set(found.serve)
    assert set(found.serve) <= set(after)
    masks = [model.mask(i) for i in after]
    assert all(not a & b for a, b in itertools.combinations(masks, 2))
    profiles = [model.profile(i.profile) for i in after]
    assert all(i.start in p.starts for i, p in zip(after, profiles, strict=True))
    assert sum(p.media for p in profiles) <= 1
    assert sum(p.compute for p in profiles) <= model.compute


def _by_trying_all(model: MigModel, wanted: list[str], in_use: list[Instance]) -> bool:
    """The plainest way to tell whether there is a layout."""
    profiles = [model.profile(name) for name in wanted]
    if sum(p.media for p in profiles) + sum(model.profile(i.profile).media for i in in_use) > 1:
        return False
    for starts in itertools.product(*(p.starts for p in profiles)):
        masks = [p.mask(s) for p, s in zip(profiles, starts, strict=True)] + [model.mask(i) for i in in_use]
        if sum(m.bit_count() for m in masks) == _union(masks).bit_count():
            return True
    return False


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


@given(st.data())
def test_no_layout_comes_twice(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([H100, A30]))
    wanted = data.draw(wishes(model))
    found = [tuple(sorted(layout)) for layout in layouts(model, wanted)]
    assert len(found) == len(set(found))


@given(st.integers(0, 255), st.integers(0, 255))
def test_more_occupied_slices_never_leave_more_room(a: int, b: int) -> None:
    assert openness(H100)[a | b] <= openness(H100)[a]


# -- many GPUs -----------------------------------------------------------------------------------


def test_a_pool_fills_the_gpu_that_is_begun_before_it_opens_another() -> None:
    pool = MigPool(H100, 3)
    gpus = []
    for _ in range(7):
        spot = pool.find("1g.10gb")
        assert spot is not None
        pool.take("1g.10gb", spot)
        gpus.append(spot.gpu)
    assert gpus == [0] * 7
    assert pool.find("7g.80gb") == Spot(1, 0)


def test_a_pool_refuses_what_does_not_stand_or_does_not_exist() -> None:
    pool = MigPool(H100, 1)
    pool.take("3g.40gb", Spot(0, 4))
    for spot in (Spot(0, 4), Spot(0, 6)):
        with pytest.raises(BadInput):
            pool.take("1g.10gb", spot)
    with pytest.raises(BadInput):
        pool.give_back("4g.40gb", Spot(0, 0))
    with pytest.raises(BadInput):
        pool.find("1g.5gb")
    assert pool.find("7g.80gb") is None


@given(
    st.lists(
        st.tuples(st.sampled_from([p.name for p in H100.profiles if not p.media]), st.booleans()), max_size=60
    )
)
def test_a_pool_never_places_two_on_one_slice_and_refuses_only_when_nothing_fits(
    steps: list[tuple[str, bool]],
) -> None:
    pool, held = MigPool(H100, 3), []
    for profile, leaves in steps:
        if leaves and held:
            pool.give_back(*held.pop(0))
            continue
        spot = pool.find(profile)
        by_gpu = [[Instance(p, s.start) for p, s in held if s.gpu == gpu] for gpu in range(3)]
        assert (spot is not None) == any(fits(H100, [profile], there) for there in by_gpu)
        if spot is not None:
            pool.take(profile, spot)
            held.append((profile, spot))
    for gpu, mask in enumerate(pool.occupied):
        masks = [H100.mask(Instance(p, s.start)) for p, s in held if s.gpu == gpu]
        assert sum(m.bit_count() for m in masks) == mask.bit_count() and _union(masks) == mask
