from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.errors import ArtifactError, InputError


def _leftovers(root: Path) -> list[Path]:
    return list((root / "tmp").iterdir())


@pytest.mark.parametrize("as_url", [False, True])
def test_put_and_get_round_trip_under_the_layout_of_the_contract(tmp_path, as_url):
    root = tmp_path / "a dir#?%41" / "store"
    store = open_store(root.as_uri() if as_url else str(root))
    digest = store.put(b"hello")
    assert digest == hashlib.sha256(b"hello").hexdigest()
    assert (root / "objects" / digest[:2] / digest).read_bytes() == b"hello"
    assert store.get(digest) == b"hello"
    assert store.has(digest)
    assert not store.has("0" * 64)
    assert list(store.digests()) == [digest]
    assert store.url == root.as_uri()
    assert not _leftovers(root)


def test_the_store_id_is_made_once(tmp_path):
    first = open_store(str(tmp_path)).store_id
    assert open_store(str(tmp_path)).store_id == first
    assert json.loads((tmp_path / "store.json").read_bytes())["store_id"] == first
    assert open_store(str(tmp_path / "other")).store_id != first


def test_many_processes_agree_on_one_store_id(tmp_path):
    # Not by fork: this process has threads, whose locks a child would inherit as they are.
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        ids = pool.map(_store_id, [str(tmp_path / "s")] * 32, chunksize=1)
    assert len(set(ids)) == 1


def _store_id(path: str) -> str:
    return open_store(path).store_id


def test_other_bytes_under_a_name_are_refused_on_every_read(tmp_path):
    store = open_store(str(tmp_path))
    digest = store.put(b"hello")
    path = tmp_path / "objects" / digest[:2] / digest
    path.write_bytes(b"hullo")
    with pytest.raises(ArtifactError, match="damaged"):
        store.get(digest)
    with pytest.raises(ArtifactError, match="damaged"), store.fetch(digest):
        pass
    path.write_bytes(b"hell")
    with pytest.raises(ArtifactError, match="damaged"):
        store.put(b"hello")
    assert path.read_bytes() == b"hell", "an object is never replaced"


def test_an_absent_object_and_a_bad_name_are_errors(tmp_path):
    store = open_store(str(tmp_path))
    with pytest.raises(ArtifactError, match="not in"):
        store.get("0" * 64)
    with pytest.raises(ArtifactError, match="not in"), store.fetch("0" * 64):
        pass
    for bad in ("", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"):
        with pytest.raises(ArtifactError, match="not a sha256"):
            store.has(bad)


def test_put_again_neither_replaces_nor_leaves_anything(tmp_path):
    store = open_store(str(tmp_path))
    digest = store.put(b"x" * 1000)
    path = tmp_path / "objects" / digest[:2] / digest
    before = path.stat().st_ino
    assert store.put(b"x" * 1000) == digest
    with store.writer() as writer:
        writer.write(b"x" * 1000)
    assert writer.digest == digest
    assert path.stat().st_ino == before
    assert not _leftovers(tmp_path)


def test_a_writer_streams_and_a_raising_block_leaves_nothing(tmp_path):
    store = open_store(str(tmp_path))
    with store.writer() as writer:
        writer.write(b"ab")
        assert writer.bytes == 2
        with pytest.raises(ArtifactError):
            _ = writer.digest
        writer.reset()
        writer.write(b"c")
    assert store.get(writer.digest) == b"c"
    with pytest.raises(RuntimeError), store.writer() as broken:
        broken.write(b"never")
        raise RuntimeError
    assert list(store.digests()) == [writer.digest]
    assert not _leftovers(tmp_path)


def test_put_file_and_fetch(tmp_path):
    source = tmp_path / "big"
    source.write_bytes(os.urandom(3_000_001))
    store = open_store(str(tmp_path / "s"))
    digest = store.put_file(source)
    with store.fetch(digest) as path:
        assert path.read_bytes() == source.read_bytes()


def test_effects_surround_each_durable_write(tmp_path):
    seen: list[tuple[str, str, int]] = []

    class Record:
        def at(self, name, when):
            seen.append((name, when, len(list((tmp_path / "objects").rglob("?" * 64)))))

    store = open_store(str(tmp_path), effects=Record())
    store.put(b"a")
    with store.writer() as writer:
        writer.write(b"b")
    assert seen == [
        ("store.open", "before", 0),
        ("store.open", "after", 0),
        ("store.put", "before", 0),
        ("store.put", "after", 1),
        ("store.put", "before", 1),
        ("store.put", "after", 2),
    ]


def test_a_death_at_the_boundary_leaves_no_half_object(tmp_path):
    class Die:
        def at(self, name, when):
            if name == "store.put":
                raise KeyboardInterrupt

    store = open_store(str(tmp_path), effects=Die())
    with pytest.raises(KeyboardInterrupt):
        store.put(b"a")
    assert list(store.digests()) == []


def test_files_are_synced_before_they_get_their_name(tmp_path, monkeypatch):
    store = open_store(str(tmp_path))
    calls: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(fd):
        calls.append("dir" if Path(f"/proc/self/fd/{fd}").resolve().is_dir() else "file")
        real_fsync(fd)

    def link(source, target, **kw):
        calls.append("link")
        real_link(source, target, **kw)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    store.put(b"durable")
    assert calls == ["file", "dir", "link", "dir"]
    calls.clear()
    store.put(b"durable")
    assert calls == ["dir"], "an object that is there already is made durable too"


def test_temp_files_of_the_dead_are_dropped_and_those_of_the_living_kept(tmp_path):
    open_store(str(tmp_path))
    old, young = tmp_path / "tmp" / "old", tmp_path / "tmp" / "young"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    open_store(str(tmp_path))
    assert _leftovers(tmp_path) == [young]


@pytest.mark.parametrize("url", ["", "  ", "ftp://x/y", "file://host/x"])
def test_a_url_that_is_no_store_is_one_sentence(url):
    with pytest.raises(InputError):
        open_store(url)


def test_a_place_that_cannot_be_used_and_a_damaged_store_file_are_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be used"):
        open_store(str(tmp_path / "file"))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "store.json").write_text("{}")
    with pytest.raises(ArtifactError, match="store_id"):
        open_store(str(tmp_path / "s"))


@given(st.lists(st.binary(max_size=5000), max_size=6))
def test_any_cutting_of_the_bytes_gives_the_same_name(tmp_path_factory, pieces):
    store = open_store(str(tmp_path_factory.mktemp("s")))
    with store.writer() as writer:
        for piece in pieces:
            writer.write(piece)
    assert writer.digest == store.put(b"".join(pieces))
