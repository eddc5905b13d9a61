"""Other users of the machine, and strangers on the network, next to a holder of copies: they read, plant and hold up nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from places import open_directory
from unidle import private
from unidle.atomic import replaced
from unidle.checkpoint.attend import move_aside
from unidle.checkpoint.holder import handshake, hold_paths, listener, memory_copies, wire
from unidle.checkpoint.holder.memory_copies import PAGE, Label
from unidle.checkpoint.holder.wire import Address, Gone
from unidle.checkpoint.layout import write_durably
from waiting import wait_until

OTHER = 65534
TOKEN = "5ec2e7" * 8
HELLO = {"do": "hello", "rank": 0, "session": "aa", "pid": 1, "options": {}, "peer": None, "lead": None}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as a second user")


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_directory() as place:
        yield place


@pytest.fixture
def base(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the copies of all users are, as ``/dev/shm`` is."""
    place = shared / "shm"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv("UNIDLE_HOLD_DIR", str(place))
    return place


@pytest.fixture
def storage(shared: Path) -> Path:
    (shared / "ckpt").mkdir()
    return shared / "ckpt"


def hold_of(storage: Path, node: str = "n0") -> Path:
    return Path(hold_paths.hold_directory(str(storage), node, "a" * 16))


@pytest.fixture
def address(base: Path, storage: Path) -> Iterator[Address]:
    """A running holder; it ends with the test."""
    found = wire.start(str(storage), str(hold_of(storage)), "n0", 30)
    yield found
    os.kill(pid_of(storage), signal.SIGKILL)


def pid_of(storage: Path) -> int:
    return int(json.loads((hold_of(storage) / wire.ADDRESS).read_text())["pid"])


def as_other(do: Callable[[], object]) -> str:
    """What a call answers, or its error, as another user of the machine."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            answer = str(do())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer


# ---- the directory of copies


@as_root
def test_a_planted_directory_of_copies_is_refused_with_its_owner(base: Path, storage: Path) -> None:
    hold = hold_of(storage)
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.2)
        said = Address("127.0.0.1", trap.getsockname()[1], TOKEN, hold.name).to_json() | {"pid": 1}

        def plant() -> None:
            hold.mkdir(parents=True)
            hold.parent.chmod(0o755)
            (hold / wire.ADDRESS).write_text(json.dumps(said))

        assert as_other(plant) == "None"
        with pytest.raises(PermissionError, match=r"belongs to user nobody \(uid 65534\), not to root"):
            wire.start(str(storage), str(hold), "n0", 30)
        with pytest.raises(TimeoutError):
            trap.accept()
    assert memory_copies.copies(str(hold)) == {}
    with pytest.raises(PermissionError, match="nobody"):
        hold_paths.gate(str(hold))


@as_root
def test_another_user_refuses_a_directory_that_root_planted(base: Path, storage: Path) -> None:
    planted = base / f"unidle-hold-{OTHER}"
    planted.mkdir(mode=0o777)
    hold = str(planted / "key")
    answer = as_other(lambda: wire.start(str(storage), hold, "n0", 30))
    assert "NotPrivate" in answer
    assert "belongs to user root (uid 0), not to nobody" in answer


@as_root
def test_another_user_reads_no_copy_and_no_token(address: Address, storage: Path) -> None:
    hold = hold_of(storage)
    for call in (
        lambda: list(hold.iterdir()),
        lambda: (hold / wire.ADDRESS).read_text(),
        lambda: (storage / ".unidle" / "holders" / f"{hold.name}.json").read_text(),
    ):
        assert as_other(call).startswith("PermissionError")


def test_all_is_private_under_any_umask(base: Path, storage: Path) -> None:
    before = os.umask(0)
    try:
        hold = hold_of(storage)
        wire.start(str(storage), str(hold), "n0", 30)
        os.kill(pid_of(storage), signal.SIGKILL)
        with hold_paths.held(str(hold)) as at:
            os.close(hold_paths.open_copy(memory_copies.own_name(0, "aa", 0), at, os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(before)
    assert (hold.parent.stat().st_mode & 0o777, hold.stat().st_mode & 0o777) == (0o700, 0o700)
    assert {path.name: path.stat().st_mode & 0o077 for path in hold.iterdir()} == {
        wire.ADDRESS: 0,
        memory_copies.own_name(0, "aa", 0): 0,
    }
    assert (storage / ".unidle").stat().st_mode & 0o077 == 0


def test_a_directory_that_others_can_enter_is_refused(base: Path, storage: Path) -> None:
    hold = hold_of(storage)
    hold.parent.mkdir()
    hold.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="mode 0777"):
        wire.start(str(storage), str(hold), "n0", 30)


def test_a_link_for_the_directory_of_copies_is_not_followed(
    base: Path, storage: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    hold = hold_of(storage)
    hold.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link"):
        wire.start(str(storage), str(hold), "n0", 30)
    assert not list((tmp_path / "elsewhere").iterdir())


# ---- the checkpoint directory


@as_root
def test_the_address_of_a_holder_that_another_user_published_does_not_count(storage: Path) -> None:
    with hold_paths.inner(str(storage), wire.HOLDERS, create=True) as fd:
        text = json.dumps(Address("127.0.0.1", 9, TOKEN, "x").to_json()).encode()
        for name in ("mine.json", "theirs.json"):
            with replaced(name, at=fd) as file:
                file.write(text)
        os.chown("theirs.json", OTHER, OTHER, dir_fd=fd)
    os.mkfifo(storage / ".unidle" / "holders" / "fifo.json")
    (storage / ".unidle" / "holders" / "link.json").symlink_to("mine.json")
    assert len(wire.published(str(storage))) == 1
    os.chown(storage / ".unidle", OTHER, OTHER)
    assert wire.published(str(storage)) == []


@as_root
def test_an_inner_directory_of_another_user_is_named(storage: Path) -> None:
    (storage / ".unidle").mkdir()
    os.chown(storage / ".unidle", OTHER, OTHER)
    with pytest.raises(PermissionError, match=r"\.unidle belongs to user nobody"):
        hold_paths.directory_id(str(storage))


@pytest.mark.parametrize("what", ["lock", "directory", "second name"])
def test_a_planted_lock_changes_no_other_file(base: Path, storage: Path, tmp_path: Path, what: str) -> None:
    victim = tmp_path / "victim" / "lock"
    victim.parent.mkdir()
    victim.write_text("precious")
    if what == "directory":
        (storage / ".unidle").symlink_to(victim.parent)
    else:
        (storage / ".unidle").mkdir()
        if what == "lock":
            (storage / ".unidle" / "lock").symlink_to(victim)
        else:
            (storage / ".unidle" / "lock").hardlink_to(victim)
    hold = hold_of(storage)
    address = wire.start(str(storage), str(hold), "n0", 30)
    try:
        with wire.connect(address) as link:
            answer, _ = wire.ask(link, HELLO)
    finally:
        os.kill(pid_of(storage), signal.SIGKILL)
    assert "the directory cannot be written" in answer["why"]
    assert "remove it" in answer["why"]
    assert victim.read_text() == "precious"


def test_a_planted_draft_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"manifest.json.{os.getpid()}.tmp").symlink_to(victim)
    write_durably(str(tmp_path / "manifest.json"), b"{}")
    (tmp_path / "target").symlink_to(victim)
    with private.folder(str(tmp_path)) as at, replaced("target", at=at) as file:
        file.write(b"new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "target").read_text() == "new"
    assert (tmp_path / "manifest.json").read_text() == "{}"


def test_a_bad_checkpoint_is_not_moved_through_a_link(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (storage / ".unidle").symlink_to(tmp_path / "elsewhere")
    (storage / "step_1.pt").write_bytes(b"")
    assert move_aside(str(storage / "step_1.pt")) == ""
    assert not list((tmp_path / "elsewhere").iterdir())


# ---- the greeting


def pair(encrypted: bool, theirs: str = TOKEN, between: Callable[..., Any] | None = None) -> list[object]:
    """What both sides of a greeting find: the connection, or the error."""
    a, b = socket.socketpair()
    ends = [a, b]
    if between is not None:
        c, d = socket.socketpair()
        threading.Thread(target=between, args=(b, c), daemon=True).start()
        ends = [a, d]

    def side(do: Callable[..., socket.socket], link: socket.socket, token: str) -> object:
        try:
            return do(link, token, "n", encrypted=encrypted)
        except (handshake.PeerRefused, OSError) as error:
            link.close()
            return error

    with ThreadPoolExecutor(2) as pool:
        return [
            f.result()
            for f in (
                pool.submit(side, handshake.ask, ends[0], TOKEN),
                pool.submit(side, handshake.answer, ends[1], theirs),
            )
        ]


@pytest.mark.parametrize("encrypted", [False, True])
def test_both_sides_have_to_have_the_token(encrypted: bool) -> None:
    ours, theirs = pair(encrypted)
    assert isinstance(ours, socket.socket)
    assert isinstance(theirs, socket.socket)
    assert isinstance(ours, ssl.SSLSocket) == encrypted
    ours.sendall(b"weights")
    assert theirs.recv(7) == b"weights"
    ours.close()
    theirs.close()
    wrong = pair(encrypted, theirs="another")
    assert isinstance(wrong[0], handshake.PeerRefused), "who listens does not have it"
    assert isinstance(wrong[1], Exception)


def test_one_that_ends_the_encryption_in_between_is_noticed_by_both() -> None:
    reached = threading.Event()

    def between(outer: socket.socket, inner: socket.socket) -> None:
        """Pass the greeting on, then put its own encryption on both sides."""
        with contextlib.suppress(OSError):
            for source, target in ((outer, inner), (inner, outer), (outer, inner)):
                head = source.recv(6, socket.MSG_WAITALL)
                target.sendall(head + source.recv(struct.unpack("!4sH", head)[1], socket.MSG_WAITALL))
            with (
                handshake._context(server=True).wrap_socket(outer, server_side=True) as left,
                handshake._context(server=False).wrap_socket(inner) as right,
            ):
                reached.set()
                right.sendall(left.recv(4096))
                left.sendall(right.recv(4096))

    ours, theirs = pair(True, between=between)
    assert reached.is_set(), "it came as far as that"
    assert isinstance(theirs, handshake.PeerRefused)
    assert isinstance(ours, Exception)


def test_one_that_only_passes_bytes_on_reads_nothing() -> None:
    seen = bytearray()

    def between(outer: socket.socket, inner: socket.socket) -> None:
        def pump(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    seen.extend(data)
                    target.sendall(data)

        with outer, inner:
            thread = threading.Thread(target=pump, args=(outer, inner), daemon=True)
            thread.start()
            pump(inner, outer)
            thread.join(60)

    ours, theirs = pair(True, between=between)
    assert isinstance(ours, socket.socket)
    assert isinstance(theirs, socket.socket)
    ours.sendall(b"weights" * 1000)
    assert theirs.recv(7) == b"weights"
    assert b"weights" not in seen
    assert TOKEN.encode() not in seen
    ours.close()
    theirs.close()


def test_a_listener_at_the_port_of_a_holder_that_ended_is_not_given_the_token() -> None:
    got = bytearray()

    def trap(server: socket.socket) -> None:
        link, _ = server.accept()
        with link:
            got.extend(link.recv(4096))
            text = json.dumps({"ok": True, "nonce": "0", "proof": "0" * 64}).encode()
            link.sendall(struct.pack("!4sH", b"UDLC", len(text)) + text)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trap, args=(server,))
        thread.start()
        with pytest.raises(Gone, match="is another one"):
            wire.connect(Address("127.0.0.1", server.getsockname()[1], TOKEN, "n"))
        thread.join()
    assert b"UDLC" in got
    assert TOKEN.encode() not in got


# ---- the network


def outside() -> str:
    """An address of this machine that other hosts could reach."""
    found = wire.own_host("192.0.2.1")
    if listener.is_loopback(found):
        pytest.skip("needs a network address besides the loopback one")
    return found


def test_a_holder_of_one_node_listens_on_the_loopback_address_only(address: Address) -> None:
    assert listener.is_loopback(address.host)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", address.here), timeout=5)


def test_a_holder_is_reached_from_other_hosts_only_by_an_encrypted_connection(
    address: Address, storage: Path
) -> None:
    host = outside()
    hold = hold_of(storage)
    found = wire.running(str(hold), coming=True, host=host)
    assert found is not None
    assert (found.host, found.here) == (host, address.here)
    assert [a.port for a in wire.published(str(storage))] == [found.port]
    label = Label("aa", 3, 0, 1, 5, 0)
    with hold_paths.held(str(hold)) as at:
        fd = hold_paths.open_copy(memory_copies.own_name(0, "aa", 0), at, os.O_RDWR | os.O_CREAT)
        os.write(fd, memory_copies.page_of(label) + b"state")
        os.close(fd)
    with wire.connect(found) as link:
        assert isinstance(link, ssl.SSLSocket)
        _, size = wire.ask(link, {"do": "read", "name": memory_copies.own_name(0, "aa", 0), "chunk": 0})
        data = bytearray(size)
        wire.receive_into(link, memoryview(data))
        assert bytes(data) == b"state"
        with pytest.raises(Gone):  # only ranks of this node register
            wire.ask(link, HELLO)
    with (
        socket.create_connection((found.host, found.port), timeout=5) as plain,
        pytest.raises((handshake.PeerRefused, OSError)),
    ):
        handshake.ask(plain, found.token, found.name, encrypted=False)


def test_hosts_decide_where_a_holder_listens() -> None:
    assert wire.host_among(["10.0.0.1"] * 4, "10.0.0.1") == wire.LOOPBACK
    assert wire.host_among(["10.0.0.1", "10.0.0.2"], "10.0.0.2") == "10.0.0.2"
    assert wire.host_among(["127.0.0.1", "127.0.0.1"], "127.0.0.1") == wire.LOOPBACK


def high_water_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def stranger(address: Address, data: bytes = b"") -> socket.socket:
    link = socket.create_connection((address.host, address.here), timeout=10)
    if data:
        link.sendall(data)
    return link


FLOODS = {
    "silent": b"",
    "the start of a message": b"UDLC\x0f",
    "lengths of the former protocol": struct.pack("!IQ", 1 << 28, 1 << 40),
    "noise": bytes(range(256)) * 16,
    "deep": b"UDLC" + struct.pack("!H", 4000) + b"[" * 4000,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_strangers_neither_keeps_a_peer_out_nor_takes_memory(
    address: Address, storage: Path, kind: str
) -> None:
    pid = pid_of(storage)
    links = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            links.append(stranger(address, FLOODS[kind]))
    begun_s = time.monotonic()
    with wire.connect(address) as link:  # while they are all still connected
        assert wire.ask(link, {"do": "inventory"})[0] == {"copies": {}}
    served_s = time.monotonic() - begun_s
    for each in links:
        each.close()
    assert served_s < 5
    assert high_water_bytes(pid) < 64 << 20
    wait_until(lambda: threads_of(pid) < 10, 60, "the end of the strangers' threads")


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.fixture
def entrance(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[listener.Listener, int]]:
    """The doors of a holder in this process, which give a stranger a minute, and their port."""
    monkeypatch.setattr(handshake, "GREETING_S", 60.0)
    made = listener.Listener(TOKEN, "n", lambda link, _: link.close())
    port, over = made.open("127.0.0.1"), threading.Event()

    def serve() -> None:
        while not over.is_set():
            made.accept(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    yield made, port
    over.set()
    thread.join()
    made.close()
    wait_until(lambda: not made._strangers, 60, "the end of the strangers")


def test_at_most_64_strangers_are_listened_to_and_the_oldest_gives_way(
    entrance: tuple[listener.Listener, int],
) -> None:
    made, port = entrance
    with contextlib.ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(100)
        ]
        for link in links[: 100 - listener.STRANGERS_MOST]:
            assert link.recv(1) == b""  # dropped for another one, long before its minute was over
        wait_until(lambda: len(made._strangers) == listener.STRANGERS_MOST, 60, "the others")
        with wire.connect(Address("127.0.0.1", port, TOKEN, "n")) as link:
            assert link.fileno() >= 0


def test_a_stranger_has_five_seconds(address: Address) -> None:
    assert handshake.GREETING_S == 5
    with stranger(address, b"UDLC") as link:
        link.settimeout(60)
        assert link.recv(1) == b""


def test_a_greeting_of_more_than_4_kib_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"UDLC" + struct.pack("!H", 4097))  # and nothing else: it is not waited for
        with pytest.raises(handshake.PeerRefused):
            handshake.answer(theirs, TOKEN, "n", encrypted=False)


def test_the_next_to_be_dropped_is_of_the_address_with_the_most() -> None:
    made: list[socket.socket] = []

    def one(host: str) -> listener._Stranger:
        a, b = socket.socketpair()
        made.extend((a, b))
        return listener._Stranger(a, host)

    peer = one("peer")
    crowd = [one("flood") for _ in range(listener.STRANGERS_MOST - 1)]
    listener._make_room([peer, *crowd])
    assert [each.dropped for each in (peer, *crowd[:2])] == [False, True, False]
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "message",
    [
        {"session": "../../x", "step": 1, "rank": 0, "world": 1, "size_bytes": 1, "time_ns": 0},
        {"session": "aa", "step": "x", "rank": 0, "world": 1, "size_bytes": 1, "time_ns": 0},
        {"session": "aa", "step": 1, "rank": 0, "world": 1, "size_bytes": -1, "time_ns": 0},
    ],
)
def test_a_label_that_is_none_makes_no_file(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no label"):
        memory_copies.label_of(message)


def test_a_page_of_a_copy_that_lies_is_no_copy(base: Path, storage: Path) -> None:
    hold = hold_of(storage)
    with hold_paths.held(str(hold), create=True) as at:
        fd = hold_paths.open_copy(memory_copies.own_name(0, "aa", 0), at, os.O_RDWR | os.O_CREAT)
        os.write(fd, memory_copies.page_of(Label("aa", 1, 0, 1, 1 << 40, 0)).ljust(PAGE))
        os.close(fd)
        os.symlink("/etc/hostname", memory_copies.own_name(1, "aa", 0), dir_fd=at)
        os.mkfifo(memory_copies.own_name(2, "aa", 0), dir_fd=at)
    assert memory_copies.copies(str(hold)) == {}
