"""Which cluster and identity the files, options and environment name; and one clear error where that is wrong."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from unidle.errors import BadInput
from unidle.kube.access import ClusterAccess
from unidle.kube.credentials import ClientPair, Credential, ExecPlugin, Fixed, TokenFile
from unidle.kube.kubeconfig import context_names, load_access

PEM = b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM).decode()


def config(**parts: Any) -> dict[str, Any]:
    """One cluster, user and context, each called ``one``; parts replace their fields."""
    cluster = {"server": "https://one.test:6443", **parts.pop("cluster", {})}
    user = parts.pop("user", {"token": "secret-token"})
    context = {"cluster": "one", "user": "one", **parts.pop("context", {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": user}],
        "contexts": [{"name": "one", "context": context}],
        **parts,
    }


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def load(tmp_path: Path, content: object, context: str | None = None) -> ClusterAccess:
    return load_access(write(tmp_path / "config", content), context, {})


def test_one_file_names_server_namespace_and_token(tmp_path: Path) -> None:
    found = load(tmp_path, config(context={"namespace": "research"}))
    assert found.server == "https://one.test:6443"
    assert found.namespace == "research"
    assert found.credentials.now() == Credential("secret-token")
    assert "secret-token" not in repr(found)
    assert found.source == f"context one of {tmp_path / 'config'}"


def test_json_is_yaml_too_and_null_fields_are_absent(tmp_path: Path) -> None:
    content = config()
    content["contexts"][0]["context"]["namespace"] = None
    content["users"][0]["user"] |= {"client-certificate": None, "exec": None}
    content["preferences"] = None
    assert load(tmp_path, json.dumps(content)).namespace == "default"


def test_the_first_file_that_names_an_entry_has_it_whole(tmp_path: Path) -> None:
    first = config(user={"token": "of-first"}, context={"namespace": ""})
    second = config(user={"token": "of-second", "as": "someone"}, context={"namespace": "of-second"})
    second["clusters"].append({"name": "two", "cluster": {"server": "https://two.test/"}})
    second["contexts"].append({"name": "two", "context": {"cluster": "two", "user": "one"}})
    second["current-context"] = "two"
    del first["current-context"]
    paths = [write(tmp_path / "a" / "first", first), write(tmp_path / "b" / "second", second)]
    environ = {"KUBECONFIG": f"{paths[0]}:{tmp_path / 'not-there'}::{paths[1]}"}
    found = load_access(None, None, environ)
    assert found.server == "https://two.test"  # current-context of the first file that has one
    assert found.credentials.now().token == "of-first"
    assert found.headers == {}
    assert load_access(None, "one", environ).namespace == "default"
    assert context_names(None, environ) == ("one", "two")


def test_paths_in_a_file_start_at_the_file(tmp_path: Path) -> None:
    for name in ("ca.pem", "client.pem", "client.key"):
        write(tmp_path / "etc" / name, PEM.decode())
    content = config(
        cluster={"certificate-authority": "ca.pem"},
        user={"client-certificate": "client.pem", "client-key": "client.key", "tokenFile": "token"},
    )
    found = load_access(write(tmp_path / "etc" / "config", content), None, {})
    write(tmp_path / "etc" / "token", "of-the-file\n")
    assert found.authority == tmp_path / "etc" / "ca.pem"
    pair = ClientPair(tmp_path / "etc" / "client.pem", tmp_path / "etc" / "client.key")
    assert found.credentials.now() == Credential("of-the-file", pair)


def test_data_takes_precedence_over_files(tmp_path: Path) -> None:
    content = config(
        cluster={"certificate-authority": "missing", "certificate-authority-data": DATA},
        user={"client-certificate-data": DATA, "client-key-data": DATA, "client-key": "missing"},
    )
    found = load(tmp_path, content)
    assert found.authority == PEM
    assert found.credentials == Fixed(Credential("", ClientPair(PEM, PEM)))


def test_options_of_the_cluster_are_read(tmp_path: Path) -> None:
    cluster = {
        "insecure-skip-tls-verify": True,
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy.test:3128/",
    }
    found = load(
        tmp_path, config(cluster=cluster, user={"as": "eve", "as-groups": ["admins"], "as-uid": "7"})
    )
    assert (found.insecure, found.server_name, found.proxy) == (True, "kubernetes", "http://proxy.test:3128")
    assert found.headers == {
        "Impersonate-User": "eve", "Impersonate-Group": "admins", "Impersonate-Uid": "7"
    }  # fmt: skip


def test_a_context_without_user_has_no_credentials(tmp_path: Path) -> None:
    content = config()
    content["contexts"][0]["context"]["user"] = ""
    assert load(tmp_path, content).credentials == Fixed()


def test_the_file_of_the_home_directory_comes_last(tmp_path: Path) -> None:
    write(tmp_path / ".kube" / "config", config())
    assert load_access(None, None, {"HOME": str(tmp_path)}).server == "https://one.test:6443"


def test_in_a_pod_it_is_the_service_account(tmp_path: Path) -> None:
    for name, text in (("token", "first"), ("namespace", "jobs\n"), ("ca.crt", PEM.decode())):
        write(tmp_path / "sa" / name, text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    found = load_access(None, None, environ, tmp_path / "sa")
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "jobs")
    assert found.authority == tmp_path / "sa" / "ca.crt"
    assert isinstance(found.credentials, TokenFile)
    assert found.credentials.now().token == "first"


def test_nothing_at_all_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no kubeconfig.*; give --kubeconfig, or set KUBECONFIG"):
        load_access(None, None, {"HOME": str(tmp_path)}, tmp_path / "sa")


def test_an_exec_plugin_is_read(tmp_path: Path) -> None:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "args": ["a"],
            "env": [{"name": "A", "value": "B"}],
            "interactiveMode": "Never",
        }
    }
    assert isinstance(load(tmp_path, config(user=user)).credentials, ExecPlugin)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"cluster": {"server": ""}}, r"clusters\[0\]\.cluster\.server: the field is missing; the form is https"),
        ({"cluster": {"server": "one.test"}}, r"server: not an address that can be used \(got 'one.test'\)"),
        ({"cluster": {"server": "https://one.test:port"}}, r"not an address that can be used"),
        ({"cluster": {"proxy-url": "socks5://p:1"}}, r"proxy-url: .*only proxies of the form http://host:port"),
        ({"cluster": {"certificate-authority-data": "!!"}}, r"certificate-authority-data: not base64; give the PEM"),
        ({"cluster": {"certificate-authority": "none.pem"}}, r"certificate-authority: there is no such file"),
        (
            {"cluster": {"certificate-authority-data": DATA, "insecure-skip-tls-verify": True}},
            r"insecure-skip-tls-verify: an authority is given too",
        ),
        ({"cluster": {"insecure-skip-tls-verify": "yes"}}, r"insecure-skip-tls-verify: Expected bool, got str"),
        ({"user": {"token": 12345}}, r"config:\d+: users\[0\]\.user\.token: Expected str, got int"),
        ({"user": {"client-certificate-data": DATA}}, r"client-key: the field is missing; add it, or client-key-data"),
        ({"user": {"username": "a", "password": "b"}}, r"username: this kind of credential is not supported"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, r"auth-provider: .*; use exec, a token or"),
        ({"user": {"exec": {"command": "x", "apiVersion": "v9"}}}, r"exec\.apiVersion: not a version .* \(got 'v9'\)"),
        ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}}, r"exec\.command: the field is missing"),
        (
            {"user": {"token": "t", "exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1"}}},
            r"exec: another credential is given too",
        ),
        ({"user": {"as-groups": ["a", "b"]}}, r"as-groups: only one group is supported"),
        ({"context": {"cluster": "no"}}, r"context one names a cluster that is not there \(got 'no'\); .*: one"),
        ({"context": {"user": "no"}}, r"context one names a user that is not there \(got 'no'\)"),
        ({"current-context": "no"}, r"current-context: there is no such context in .* \(got 'no'\); .*: one"),
        ({"current-context": ""}, r"no context is current in .*; give --context; those that there are: one"),
        ({"kind": "Pod"}, r"kind: not a kubeconfig \(got 'Pod'\)"),
        ({"clusters": {"one": {}}}, r"clusters: Expected array, got object"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_field_and_remedy(
    tmp_path: Path, parts: dict[str, Any], error: str
) -> None:
    with pytest.raises(BadInput, match=error) as found:
        load(tmp_path, config(**parts))
    assert "secret-token" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- a", "not a mapping of fields"),
        ("a: [", r"config:\d: not valid YAML"),
        ("\0", "not text"),
        ("", "no context is current"),
    ],
)
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(BadInput, match=error):
        load(tmp_path, text)


def test_a_context_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"context: there is no such context .* \(got 'prod'\); .*: one"):
        load(tmp_path, config(), "prod")


def test_a_file_that_is_given_has_to_be_there(tmp_path: Path) -> None:
    for environ, given in (({}, tmp_path / "no"), ({"KUBECONFIG": str(tmp_path / "no")}, None)):
        with pytest.raises(BadInput, match="there is no such file"):
            load_access(given, None, environ)
