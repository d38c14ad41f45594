from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.compiler import CompileCache, frames

KEY = CompileCache.key("a" * 64, "v5e", "libtpu 0.0.42", "0.10.2")
HEADER = {"seconds": 0.5, "memory": {"argument_bytes": 3}}
SEGMENTS = {"hlo": b"text", "final_bundles/f.1": bytes(range(256)) * 10, "empty": b""}


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "programs")


def test_what_is_put_comes_back(cache):
    assert cache.get(KEY) is None
    assert cache.put(KEY, HEADER, SEGMENTS)
    assert cache.get(KEY) == (HEADER, SEGMENTS)
    assert cache.warnings == []


def test_keys_depend_on_everything():
    parts = ["a", "v5e", "libtpu 1", "0.10"]
    keys = {CompileCache.key(*parts)}
    for index in range(4):
        changed = list(parts)
        changed[index] += "x"
        keys.add(CompileCache.key(*changed))
    # the parts must not run into each other
    keys.add(CompileCache.key("av5e", "", "libtpu 1", "0.10"))
    assert len(keys) == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: b"X" + data[1:],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: os.urandom(5000),
    ],
)
def test_a_damaged_entry_is_a_warning_and_a_miss(cache, damage):
    cache.put(KEY, HEADER, SEGMENTS)
    path = cache.path(KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEY) is None
    assert len(cache.warnings) == 1
    assert "damaged" in cache.warnings[0]
    assert not path.exists()
    assert cache.put(KEY, HEADER, SEGMENTS)
    assert cache.get(KEY) == (HEADER, SEGMENTS)


def test_a_full_disk_is_a_warning(cache, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not cache.put(KEY, HEADER, SEGMENTS)
    assert not cache.put(KEY, HEADER, SEGMENTS)
    assert cache.get(KEY) is None
    # said once, not at every compile
    assert len(cache.warnings) == 1
    assert "No space left on device" in cache.warnings[0]
    assert list(cache.path(KEY).parent.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_write_that_fails_halfway_leaves_nothing(cache, monkeypatch):
    real = os.fdopen

    def to_full(handle: int, mode: str):
        os.close(handle)
        return real(os.open("/dev/full", os.O_WRONLY), mode)

    monkeypatch.setattr(os, "fdopen", to_full)
    assert not cache.put(KEY, HEADER, SEGMENTS)
    monkeypatch.undo()
    assert "can't be written" in cache.warnings[0]
    assert cache.get(KEY) is None
    assert list(cache.path(KEY).parent.iterdir()) == []


def test_a_directory_that_is_a_file(tmp_path):
    place = tmp_path / "programs"
    place.write_text("in the way")
    cache = CompileCache(place)
    assert cache.get(KEY) is None
    assert not cache.put(KEY, HEADER, SEGMENTS)
    assert cache.size_bytes() == 0
    assert cache.prune() == 0
    assert all(
        warning.endswith(("compiling instead", "session only")) for warning in cache.warnings
    )
    assert place.read_text() == "in the way"


@pytest.mark.skipif(os.name == "nt", reason="permissions differ")
def test_a_read_only_directory(tmp_path, monkeypatch):
    # root may write anywhere, so the refusal is made where the system would make it
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    cache = CompileCache(tmp_path / "programs")
    monkeypatch.setattr(tempfile, "mkstemp", denied)
    assert not cache.put(KEY, HEADER, SEGMENTS)
    assert "Permission denied" in cache.warnings[0]


def test_the_entries_used_longest_ago_go_first(tmp_path):
    cache = CompileCache(tmp_path, limit_bytes=10_000)
    keys = [CompileCache.key(str(n), "v5e", "c", "j") for n in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, {}, {"data": os.urandom(2000)})
        os.utime(cache.path(key), (1_000_000 + age, 1_000_000 + age))
    assert cache.get(keys[0]) is not None  # now the one used last
    cache.prune()
    assert cache.size_bytes() <= 10_000
    left = [key for key in keys if cache.path(key).exists()]
    assert keys[0] in left
    assert left[1:] == keys[-len(left) + 1 :]


def test_pruning_leaves_writes_under_way_alone_and_buries_old_ones(tmp_path):
    cache = CompileCache(tmp_path, limit_bytes=0)
    shelf = cache.path(KEY).parent
    shelf.mkdir(parents=True)
    (shelf / ".writing-now").write_bytes(b"x")
    (shelf / ".writing-old").write_bytes(b"x")
    os.utime(shelf / ".writing-old", (1, 1))
    cache.prune()
    assert [path.name for path in shelf.iterdir()] == [".writing-now"]


def test_many_threads_and_a_second_process(tmp_path):
    script = (
        "import sys; from pathlib import Path; from tpulab.compiler import CompileCache\n"
        "cache = CompileCache(Path(sys.argv[1]))\n"
        "for n in range(200):\n"
        "    key = CompileCache.key(str(n % 7), 'v5e', 'c', 'j')\n"
        "    cache.put(key, {'n': n % 7}, {'data': bytes([n % 7]) * 5000})\n"
        "    header, segments = cache.get(key)\n"
        "    assert segments['data'] == bytes([header['n']]) * 5000\n"
        "assert not cache.warnings, cache.warnings\n"
    )
    root = Path(__file__).parents[2]
    others = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=root) for _ in range(2)
    ]
    cache = CompileCache(tmp_path)
    failures = []

    def work() -> None:
        for n in range(200):
            key = CompileCache.key(str(n % 7), "v5e", "c", "j")
            cache.put(key, {"n": n % 7}, {"data": bytes([n % 7]) * 5000})
            entry = cache.get(key)
            if entry is None or entry[1]["data"] != bytes([entry[0]["n"]]) * 5000:
                failures.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(60) for process in others] == [0, 0]
    assert failures == []
    assert cache.warnings == []


@given(
    st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()),
    st.dictionaries(st.text(), st.binary()),
)
def test_messages_survive_the_way(header, segments):
    assert frames.unpack(frames.pack(header, segments)) == (header, segments)


@given(st.binary(max_size=200))
def test_noise_is_no_message(data):
    with pytest.raises(frames.FrameError):
        frames.unpack(data)


@given(st.integers(0, 200))
def test_a_cut_message_is_no_message(length):
    data = frames.pack({"a": 1}, {"b": b"x" * 100})
    if length < len(data):
        with pytest.raises(frames.FrameError):
            frames.unpack(data[:length])
