"""The cache: whole entries or none, and the reason for every miss."""

import json
import threading

import pytest

from vc_attention.build import cache

MADE_OF = {"unit": "u", "arch": "90a", "source": "s1", "options": ["-a"], "interface": 1}
DATA = b"\x7fELF" + bytes(1000)


def store(**changed):
    return cache.store("u-sm_90a", ".cubin", DATA, {**MADE_OF, **changed}, {"seconds": 1.0})


def test_what_was_stored_is_found_with_its_stamp(folders):
    entry = store(compiler="nvcc 13.0")
    found = cache.find("u-sm_90a", **MADE_OF)
    assert found.data == DATA
    assert found.path == entry.path and found.path.parent == folders[0]
    assert found.stamp["compiler"] == "nvcc 13.0" and found.stamp["bytes"] == len(DATA)


def test_the_compiler_is_no_reason_to_build_again_and_the_newest_wins(folders):
    store(compiler="nvcc 12.8")
    cache.store("u-sm_90a", ".cubin", DATA + b"2", {**MADE_OF, "compiler": "nvrtc 13.5"}, {})
    assert cache.find("u-sm_90a", **MADE_OF).stamp["compiler"] == "nvrtc 13.5"


@pytest.mark.parametrize("field", list(MADE_OF))
def test_a_stale_or_foreign_entry_is_missed_by_field(folders, field):
    store(**{field: "other"})
    with pytest.raises(cache.CacheMiss, match=f"differs in {field}"):
        cache.find("u-sm_90a", **MADE_OF)


def test_a_truncated_file_is_missed(folders):
    entry = store()
    entry.path.write_bytes(DATA[:500])
    with pytest.raises(cache.CacheMiss, match="damaged: 500 bytes, 1004 were built"):
        cache.find("u-sm_90a", **MADE_OF)


def test_a_vanished_file_names_antivirus_file_and_hash(folders):
    entry = store()
    entry.path.unlink()
    with pytest.raises(cache.CacheMiss) as caught:
        cache.find("u-sm_90a", **MADE_OF)
    for part in ("antivirus", str(entry.path), entry.stamp["sha256"]):
        assert part in str(caught.value)


@pytest.mark.parametrize("stamp", [b"", b"{", b"[]", b'{"file": "../../secret"}', b'{"file": 3}', b"\xff\xfe"])
def test_a_stamp_that_is_none_is_missed(folders, stamp):
    folders[0].mkdir(parents=True)
    (folders[0] / "u-sm_90a-x.json").write_bytes(stamp)
    with pytest.raises(cache.CacheMiss):
        cache.find("u-sm_90a", **MADE_OF)


def test_a_stamp_cannot_point_out_of_its_folder(folders):
    entry = store()
    secret = folders[0].parent / "secret"
    secret.write_bytes(DATA)
    stamp_path = next(folders[0].glob("*.json"))
    stamp_path.write_text(json.dumps({**entry.stamp, "file": "../secret"}))
    with pytest.raises(cache.CacheMiss):
        cache.find("u-sm_90a", **MADE_OF)


def test_a_stamp_may_name_what_cannot_be_a_file(folders):
    entry = store()
    next(folders[0].glob("*.json")).write_text(json.dumps({**entry.stamp, "file": "u\0"}))
    with pytest.raises(cache.CacheMiss):
        cache.find("u-sm_90a", **MADE_OF)


def test_nothing_built_says_so(folders):
    with pytest.raises(cache.CacheMiss, match="never built"):
        cache.find("u-sm_90a", **MADE_OF)


def test_a_read_only_pack_uses_the_users_folder(folders):
    folders[0].parent.write_text("a file where the folder would be: nobody can write there, not even root")
    entry = store()
    assert entry.path.parent == folders[1]
    assert cache.find("u-sm_90a", **MADE_OF).data == DATA


def test_no_folder_at_all_names_both(folders):
    for folder in folders:
        folder.parent.write_text("")
    with pytest.raises(OSError, match="no folder for built kernels can be written") as caught:
        cache.writable()
    assert all(str(folder) in str(caught.value) for folder in folders)


def test_prune_drops_old_sources_but_not_bytes_still_in_use(folders):
    kept = store(source="old")  # same bytes: a comment changed
    old = cache.store("u-sm_90a", ".cubin", b"old bytes", {**MADE_OF, "source": "older"}, {})
    store()
    cache.prune("u-sm_90a", **MADE_OF)
    assert not old.path.exists() and kept.path.exists()
    assert [stamp["source"] for stamp in cache.entries()] == ["s1"]
    assert cache.find("u-sm_90a", **MADE_OF).data == DATA


def test_clean_leaves_nothing(folders):
    store()
    assert cache.clean() == [folders[0]]
    assert cache.entries() == [] and not folders[0].exists()


def test_clean_tells_what_it_could_not_remove(folders, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folders[0].parent.mkdir()
    folders[0].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="cannot be removed whole") as caught:
        cache.clean()
    assert str(folders[0]) in str(caught.value)


def test_writers_side_by_side_leave_one_whole_entry(folders):
    def write(number):
        for _ in range(20):
            cache.store("u-sm_90a", ".cubin", DATA + bytes([number]), MADE_OF, {})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        try:
            assert cache.find("u-sm_90a", **MADE_OF).data[:-1] == DATA
            seen += 1
        except cache.CacheMiss as miss:
            assert "never built" in str(miss)  # before the first one
            assert seen == 0
    for thread in threads:
        thread.join()
    assert len(cache.entries()) == 1
    assert not list(folders[0].glob(".part-*"))
