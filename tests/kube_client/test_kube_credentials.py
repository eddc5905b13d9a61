"""Tokens that are replaced, and plugins that print credentials: real files and programs."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput, CannotRun
from unidle.kube.credentials import ClientPair, Credential, ExecPlugin, Plugin, TokenFile
from waiting import wait_until

V1 = "client.authentication.k8s.io/v1"


def program(folder: Path, text: str) -> Path:
    """A plugin: a script of the shell. Each run adds a line to ``runs``."""
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\ncd {folder}\necho run >> runs\n{text}\n")
    path.chmod(0o755)
    return path


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


def printed(token: str = "from-plugin", **status: Any) -> str:
    told = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": token, **status}}
    return f"cat <<'END'\n{json.dumps(told)}\nEND"


def plugin(folder: Path, text: str, **more: Any) -> ExecPlugin:
    path = program(folder, text)
    return ExecPlugin(Plugin(V1, str(path), (), {}, interactive="Never", **more))


def test_a_plugin_is_run_once_until_its_credential_is_refused(tmp_path: Path) -> None:
    found = plugin(tmp_path, printed())
    first = found.now()
    assert first == Credential("from-plugin")
    assert found.now() is first
    assert runs(tmp_path) == 1
    assert found.refused(first)
    found.now()
    assert runs(tmp_path) == 2
    assert found.refused(first)  # by another thread, which had the first one
    found.now()


@pytest.mark.parametrize(("expires", "again"), [("2001-01-01T00:00:00Z", 2), ("2999-01-01T00:00:00Z", 1)])
def test_a_credential_that_is_over_is_made_again(tmp_path: Path, expires: str, again: int) -> None:
    found = plugin(tmp_path, printed(expirationTimestamp=expires))
    found.now()
    found.now()
    assert runs(tmp_path) == again


def test_threads_that_need_a_credential_at_once_run_one_plugin(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    found = plugin(tmp_path, f"read line < gate\n{printed()}")
    got: list[Credential] = []
    threads = [threading.Thread(target=lambda: got.append(found.now())) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until((tmp_path / "runs").exists, what="the plugin")
    (tmp_path / "gate").write_text("go\n")
    for thread in threads:
        thread.join()
    assert got == [Credential("from-plugin")] * 8
    assert runs(tmp_path) == 1


def test_a_plugin_gets_its_arguments_environment_and_cluster(tmp_path: Path) -> None:
    path = program(tmp_path, f'echo "$1 $A $KUBERNETES_EXEC_INFO" > got\n{printed()}')
    cluster = {"server": "https://one.test"}
    told = Plugin(
        V1, path.name, ("first",), {"A": "B"}, interactive="Never", cluster=cluster, folder=tmp_path
    )
    with pytest.raises(CannotRun, match="not installed"):  # a bare name is looked up on PATH
        ExecPlugin(told).now()
    ExecPlugin(Plugin(V1, "./plugin", ("first",), {"A": "B"}, "", "Never", cluster, tmp_path)).now()
    first, environment, info = (tmp_path / "got").read_text().split(" ", 2)
    assert (first, environment) == ("first", "B")
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": cluster},
    }


def test_a_plugin_may_give_a_client_certificate(tmp_path: Path) -> None:
    found = plugin(tmp_path, printed("", clientCertificateData="CERT", clientKeyData="KEY"))
    assert found.now() == Credential("", ClientPair(b"CERT", b"KEY"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("echo no such account >&2; exit 3", "failed: exit code 3: no such account"),
        ("echo hello", "did not print an ExecCredential"),
        ("echo '{}'", "printed no kind of no apiVersion, not ExecCredential"),
        (printed(""), "printed no credential"),
        (printed("", clientCertificateData="CERT"), "printed only one of clientCertificateData"),
        (printed(expirationTimestamp="soon"), "expirationTimestamp 'soon', which is no time"),
        (
            printed().replace(V1, "client.authentication.k8s.io/v1beta1"),
            "of client.authentication.k8s.io/v1beta1, not",
        ),
    ],
)
def test_a_plugin_that_fails_is_one_clear_error(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(CannotRun, match=error):
        plugin(tmp_path, text).now()


def test_a_plugin_that_is_not_installed_names_how_to_install_it() -> None:
    told = Plugin(V1, "no-such-plugin-of-unidle", (), {}, install_hint="Install it\nwith brew.")
    with pytest.raises(CannotRun, match=r"not installed .*; Install it with brew\."):
        ExecPlugin(told).now()


def test_a_plugin_that_needs_a_terminal_is_refused_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nowhere:
        monkeypatch.setattr("sys.stdin", nowhere)
        told = Plugin(V1, str(program(tmp_path, printed())), (), {}, interactive="Always")
        with pytest.raises(CannotRun, match="needs a terminal"):
            ExecPlugin(told).now()


def test_a_token_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    found = TokenFile(path)
    first = found.now()
    assert first.token == "first"
    assert not found.refused(first)  # the file has no other one
    path.with_suffix(".new").write_text("second")
    path.with_suffix(".new").replace(path)
    assert found.refused(first)
    assert found.now().token == "second"
    path.write_text("third and longer")
    wait_until(lambda: found.now().token == "third and longer", what="the next look at the file")


def test_a_token_file_that_is_gone_for_a_moment_keeps_its_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    found = TokenFile(path)
    first = found.now()
    path.unlink()
    assert not found.refused(first)
    assert found.now() == first


@pytest.mark.parametrize("content", [None, "", "\xff"])
def test_a_token_file_without_a_token_is_one_clear_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(BadInput, match="tokenFile: the token file"):
        TokenFile(path).now()
