"""`scripts/kube` where there is no cluster: what it refuses, with which exit code, and that it then leaves nothing."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import tarfile
from pathlib import Path

import pytest

import needs
from kube.cluster import ROOT, assets, kube
from kube_cluster import image, network, pki, state
from kube_cluster.layout import IMAGE, Layout


def test_a_wrong_count_is_one_clear_error(tmp_path: Path) -> None:
    done = kube("up", "--nodes", 0, "--dir", tmp_path / "c")
    assert (done.returncode, done.stderr) == (2, "kube: --nodes: has to be from 1 to 100 (got 0)\n")
    assert not (tmp_path / "c").exists()


@needs.root
def test_assets_that_are_not_built_are_named_with_the_command(tmp_path: Path) -> None:
    done = kube("up", "--dir", tmp_path / "c", UNIDLE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert "make kube-assets" in line or "apt-get install" in line
    assert not (tmp_path / "c").exists()


def test_assets_without_go_are_one_clear_error(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "readlink"):
        (programs / name).symlink_to(Path("/bin") / name)
    done = kube("assets", UNIDLE_CACHE=str(tmp_path / "cache"), PATH=str(programs))
    assert done.returncode == 3
    assert done.stderr.startswith("kube: there is no Go on PATH; install Go 1.26")


@needs.root
def test_down_does_not_touch_a_directory_that_is_not_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "mine.txt").write_text("mine")
    done = kube("down", "--dir", tmp_path)
    assert done.returncode == 2
    assert "has no cluster" in done.stderr
    assert (tmp_path / "nodes" / "mine.txt").read_text() == "mine"


@needs.root
def test_down_where_nothing_is_says_so(tmp_path: Path) -> None:
    done = kube("down", "--dir", tmp_path / "c")
    assert (done.returncode, done.stderr) == (0, f"kube: no cluster runs in {tmp_path / 'c'}\n")


def test_status_of_no_cluster_is_an_error(tmp_path: Path) -> None:
    done = kube("status", "--dir", tmp_path)
    assert done.returncode == 2
    assert "start one: scripts/kube up" in done.stderr


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Exception, match=r"new or empty, and it has mine\.txt"):
        state.claim(Layout(tmp_path), 1, 0)


def test_two_commands_on_one_cluster_exclude_each_other(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with state.locked(layout), pytest.raises(state.InUse, match="another scripts/kube"), state.locked(layout):
        pass


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = state.State(str(tmp_path), octet=105, nodes=2, kwok=3)
    written.add(state.Process("etcd", "cp", 1, state.start_of(1)))
    found = state.read(Layout(tmp_path))
    assert found == written
    assert found.processes["etcd"].alive
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.json"]


def test_clusters_of_two_directories_share_no_name(tmp_path: Path) -> None:
    one, other = Layout(tmp_path / "a", 101), Layout(tmp_path / "b", 102)
    for of in ("id", "bridge", "group", "host", "network", "server"):
        assert getattr(one, of) != getattr(other, of)
    assert max(len(one.port(100)), len(one.bridge)) <= 15  # the kernel's bound of an interface's name


def test_a_network_that_this_machine_has_a_route_to_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    first = network.free_octet(layout)
    taken = [*network.used(), ipaddress.IPv4Network(f"10.{first}.3.0/24")]
    monkeypatch.setattr(network, "used", lambda: taken)
    assert network.free_octet(layout) != first


def test_the_image_is_the_same_each_time_and_names_its_layer(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(b"a program")
    for name in ("one.tar", "two.tar"):
        image.write(tmp_path / name, tool)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        read = {entry.name: archive.extractfile(entry) for entry in archive}
        contents = {name: file.read() for name, file in read.items() if file is not None}
    [manifest] = json.loads(contents["manifest.json"])
    assert manifest["RepoTags"] == [IMAGE]
    config = json.loads(contents[manifest["Config"]])
    [layer] = manifest["Layers"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(contents[layer]).hexdigest()}"]


def test_assets_have_another_directory_once_a_pinned_module_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = assets.key()
    assert assets.key() == before
    for module in {program.module for program in assets.PROGRAMS}:
        (tmp_path / module).mkdir()
        for file in (assets.MODULES / module).iterdir():
            (tmp_path / module / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(assets, "MODULES", tmp_path)
    assert assets.key() == before
    with (tmp_path / "kwok" / "go.sum").open("a") as file:
        file.write("\n")
    assert assets.key() != before


def test_modules_name_no_address_of_a_registry() -> None:
    for file in (ROOT / "kube" / "assets").glob("*/go.mod"):
        assert "://" not in file.read_text()
        assert "toolchain" not in file.read_text()


def test_a_key_is_closed_to_others_under_any_umask(tmp_path: Path) -> None:
    pair = pki.Authority(tmp_path, "ca").sign(tmp_path / "client", "someone", ["a group"])
    assert pair.key.stat().st_mode & 0o777 == 0o600
