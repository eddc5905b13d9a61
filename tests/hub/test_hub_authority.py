"""The hub's certificate: made once, renewed before it ends, and never from files of another user."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from box.small_hub import certificates
from hub.dialer import RawClient, box, running
from unidle import private
from unidle.clock import RealClock
from unidle.errors import BadInput, CannotRun, StoreError
from unidle.hub.authority import OwnIdentity, SiteIdentity
from unidle.hub.listening import names_of, parsed
from unidle.hub.reader import HostFiles
from unidle.hub.server import SiteFiles, open_hub
from unidle.hub.verify import authority_is_own, client_context

DAY = 86400.0


def identity(state: Path, now_s: float, names: tuple[str, ...] = ("127.0.0.1", "localhost")) -> OwnIdentity:
    where = state / "hub"
    folder = private.open_folder(str(where), create=True, private=True)
    try:
        return OwnIdentity(folder, str(where), names, now_s)
    finally:
        os.close(folder)


def test_files_are_private_and_whole(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with running(tmp_path):
            where = tmp_path / "hub"
            assert where.stat().st_mode & 0o777 == 0o700
            assert {path.name: oct(path.stat().st_mode & 0o777) for path in where.iterdir()} == dict.fromkeys(
                ["ca.key", "ca.pem", "join", "reader", "secret", "server.key", "server.pem"], "0o600"
            )
    finally:
        os.umask(old)


def test_the_authority_outlives_the_hub_and_clients_verify_every_name_of_it(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        first = hub.authority
    with running(tmp_path, "localhost:0") as hub:
        assert hub.authority == first and authority_is_own(first) and not authority_is_own("")
        for name in ("127.0.0.1", "localhost", "unidle-hub"):
            with socket.create_connection(hub.addresses[0][:2], timeout=10) as sock:
                client_context(first).wrap_socket(sock, server_hostname=name).close()


def test_a_client_of_another_authority_does_not_talk_to_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "a") as hub, running(tmp_path / "b") as other, RawClient(hub) as client:
        client.hub = other
        with pytest.raises(ssl.SSLCertVerificationError):
            client.tls()


def test_the_certificate_is_renewed_thirty_days_before_its_end_and_connections_stay(tmp_path: Path) -> None:
    now = time.time()
    own = identity(tmp_path, now)
    first = own.context(now)
    assert own.context(now + 59 * DAY) is first and own.renewals == 1
    second = own.context(now + 61 * DAY)
    assert second is not first and own.renewals == 2
    (tmp_path / "hub" / "ca.key").unlink()
    assert own.context(now + 200 * DAY) is second and own.errors == 1  # better an old one than none
    own.close()


def test_new_names_and_a_clock_that_was_wrong_make_a_new_certificate(tmp_path: Path) -> None:
    now = time.time()
    identity(tmp_path, now).close()
    same = identity(tmp_path, now)
    assert same.renewals == 0
    same.close()
    for again in (
        identity(tmp_path, now, ("10.0.0.1",)),
        identity(tmp_path, now + 1000 * DAY),
        identity(tmp_path, now),
    ):
        assert again.renewals == 1
        again.close()


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "secret"])
def test_a_damaged_file_is_an_error_with_a_remedy(name: str, tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    (tmp_path / "hub" / name).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="join again"), running(tmp_path):
        pass


@pytest.mark.parametrize("name", ["server.pem", "server.key"])
def test_a_damaged_certificate_of_the_server_is_made_again(name: str, tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    (tmp_path / "hub" / name).write_bytes(b"damaged")
    with running(tmp_path) as hub, box(hub):
        pass


def test_a_lost_key_of_the_authority_is_no_silent_new_authority(tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    (tmp_path / "hub" / "ca.key").unlink()
    with pytest.raises(StoreError, match=r"ca\.key is missing"), running(tmp_path):
        pass


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub").chmod(0o755)
    with pytest.raises(private.NotPrivate), running(tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("name", ["secret", "ca.key", "nodes"])
def test_a_file_of_another_user_is_refused(name: str, tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    path = tmp_path / "hub" / name
    path.touch()
    os.chown(path, 65534, 65534)
    with pytest.raises(private.NotPrivate), running(tmp_path):
        pass


def test_the_site_s_certificate_is_used_and_loaded_again_when_it_is_replaced(tmp_path: Path) -> None:
    identity(tmp_path, time.time()).close()
    where = tmp_path / "hub"
    site = SiteFiles(str(where / "server.pem"), str(where / "server.key"), str(where / "ca.pem"))
    (tmp_path / "state").mkdir()
    hub = open_hub("127.0.0.1:0", str(tmp_path / "state"), RealClock(), 1, site=site)
    try:
        with box(hub):
            assert not (tmp_path / "state" / "hub" / "ca.key").exists()
    finally:
        hub.close()
    used = SiteIdentity(site.certificate, site.key)
    first = used.context(1000)
    os.utime(site.certificate, ns=(1, 1))
    assert used.context(1030) is first and used.context(1061) is not first and used.authority == ""
    with pytest.raises(BadInput):
        SiteIdentity(site.certificate, str(where / "ca.key"))
    with pytest.raises(BadInput):
        SiteIdentity(site.certificate, site.key, site.key)


def test_commands_of_the_owner_trust_exactly_the_site_s_certificate_also_while_it_is_replaced(
    tmp_path: Path,
) -> None:
    first, second, stranger = (made(tmp_path / name) for name in ("first", "second", "stranger"))
    state, site = tmp_path / "state", tmp_path / "site"
    state.mkdir()
    site.mkdir()
    put(first, site)
    hub = open_hub("127.0.0.1:0", str(state), RealClock(), 1, site=SiteFiles(*files_of(site)))
    try:
        assert hub.dialled_as("127.0.0.1") == "localhost" == hub.dialled_as("localhost")
        HostFiles(state).close()
        put(second, site)
        HostFiles(state).close()  # the hub shows the first one still: it looks once a minute
        reader = state / "hub" / "reader"
        content = json.loads(reader.read_text())
        newest = (second / "hub.pem").read_text()
        reader.write_text(json.dumps({**content, "certificate": newest}))
        with pytest.raises(CannotRun, match="cannot be reached"):
            HostFiles(state)
    finally:
        hub.close()
    put(first, site)
    identity = SiteIdentity(*files_of(site))
    shown: list[str] = []
    identity.follow(lambda: shown.append(identity.site.pem))
    identity.context(1000)
    put(stranger, site)
    identity.context(1100)
    assert shown == [(stranger / "hub.pem").read_text()]


def made(place: Path) -> Path:
    """A directory with a certificate for localhost, by an authority that no client trusts."""
    place.mkdir()
    certificates(place, "DNS:*.example.test,DNS:localhost")
    return place


def put(source: Path, site: Path) -> None:
    for name in ("hub.key", "hub.pem"):
        draft = site / f"{name}.draft"
        draft.write_bytes((source / name).read_bytes())
        draft.replace(site / name)


def files_of(site: Path) -> tuple[str, str]:
    return str(site / "hub.pem"), str(site / "hub.key")


def test_without_cryptography_there_is_one_error_that_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from unidle.hub.server import open_hub; from unidle.clock import RealClock\n"
        "from unidle.errors import CannotRun\n"
        "try: open_hub('127.0.0.1:0', sys.argv[1], RealClock(), 1)\n"
        "except CannotRun as error: print(error.line())\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert ran.stdout == (
        "a certificate authority of its own needs the package cryptography; "
        "pip install 'unidle[hosts]', or give the site's certificate, key and authority as files\n"
    )


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a:1", "a", 1),
        (":5", "", 5),
        ("[::1]:5", "::1", 5),
        ("::1", "::1", 7464),
        ("[::1]", "::1", 7464),
        ("a", "a", 7464),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parsed(text) == (host, port)


@pytest.mark.parametrize("text", ["a:b", "a:70000", "a:", "no.such.host.invalid:1"])
def test_a_wrong_address_is_one_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--listen"), running(tmp_path, text):
        pass


def test_an_address_of_another_host_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="name an address of this host"), running(tmp_path, "192.0.2.1:0"):
        pass


def test_a_hub_on_all_addresses_is_reached_on_each_of_them(tmp_path: Path) -> None:
    with running(tmp_path, ":0") as hub:
        port = hub.addresses[0][1]
        assert {found for _, found in hub.addresses} == {port}
        for listener in hub.addresses:
            with socket.create_connection(
                ("::1" if ":" in listener[0] else "127.0.0.1", port), timeout=10
            ) as sock:
                names = names_of([sock])
                client_context(hub.authority).wrap_socket(sock, server_hostname=names[-1]).close()
