"""Waits on the cpu lane: each way to read a tensor's values is seen at its line, and what reads none is not."""

import importlib.util
import sys

import pytest

torch = pytest.importorskip("torch")

from reproducers.probe.measuring import host_waits  # noqa: E402  (needs torch)

READS = {
    "item": "t[0].item()",
    "int": "int(t[1])",
    "slice bound": "t[: t[0]]",
    "iteration": "[int(x) for x in t]",
    "mask as index": "t[t > 3]",
    "where": "torch.where(t > 3)",
    "tolist": "t.tolist()",
    "cpu": "t.cpu()",
    "to cpu": "t.to('cpu')",
    "to device cpu": "t.to(device='cpu')",
    "numpy": "t.numpy()",
    "numpy detached": "t.detach().numpy()",
    "asarray": "np.asarray(t)",
    "array": "np.array(t)",
    "add": "np.add(t, 1)",
    "concatenate": "np.concatenate([t, t])",
    "array protocol": "t.__array__()",
    "memoryview": "memoryview(t.numpy())",
    "text": "str(t)",
    "format": "f'{t}'",
    "format of a number": "f'{t[0]}'",
    "untyped storage": "t.untyped_storage()[0]",
    "untyped storage, list": "t.untyped_storage().tolist()",
    "untyped storage, bytes": "bytes(t.untyped_storage())",
    "untyped storage, slice": "list(t.untyped_storage()[4:8])",
    "typed storage": "t.storage()[0]",
    "typed storage, list": "t.storage().tolist()",
    "address": "(ctypes.c_int * 3).from_address(t.data_ptr())[0]",
    "address, cast": "ctypes.cast(t.data_ptr(), ctypes.POINTER(ctypes.c_int))[0]",
    "address, string": "ctypes.string_at(t.data_ptr(), 12)",
    "address of a storage": "ctypes.string_at(t.untyped_storage().data_ptr(), 12)",
    "address of a typed storage": "ctypes.string_at(t.storage().data_ptr(), 12)",
    "dlpack": "np.from_dlpack(t)",
    "capsule": "t.__dlpack__()",
    "capsule by function": "torch.utils.dlpack.to_dlpack(t)",
    "pickle": "pickle.dumps(t)",
    "unique rows": "torch.unique(t, dim=0)",
    "bincount": "torch.bincount(t)",
    "a number on the device": "torch.tensor(3)",
}
SEVERAL = ("iteration", "concatenate")
QUIET = {
    "arithmetic": "t.cumsum(0) + t.size(0)",
    "gather": "t[torch.arange(3)]",
    "device": "t.to(t.device, torch.int64)",
    "repeat of known size": "t.repeat_interleave(t, output_size=12)",
    "size of a storage": "t.untyped_storage().nbytes()",
    "assertion": "torch._assert_async(t[0] == 3)",
    "storage shared": "torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())",
    "shape in a text": "f'{t.shape} {t.device}'",
}


def places(tmp_path, code: str, within: str = "upstream") -> dict[str, int]:
    """What is counted for ``code`` in a module of the tree, on its second line."""
    (tmp_path / "upstream").mkdir()
    (tmp_path / "other").mkdir()
    file = tmp_path / within / "module.py"
    made = "t = torch.tensor([3, 4, 5], dtype=torch.int32)"
    file.write_text(f"import ctypes, pickle, torch; import numpy as np; {made}\ndef call(): {code}\n")
    spec = importlib.util.spec_from_file_location("module", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(host_waits(module.call, tmp_path / "upstream", "cpu"))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:__array:DeprecationWarning")
@pytest.mark.parametrize("what", READS)
def test_a_read_is_seen_at_its_line(tmp_path, what):
    seen = places(tmp_path, READS[what])
    assert set(seen) == {"module.py:2"} and (seen["module.py:2"] == 1 or "storage" in what or what in SEVERAL)


@pytest.mark.parametrize("what", QUIET)
def test_what_reads_no_value_is_not_counted(tmp_path, what):
    assert places(tmp_path, QUIET[what]) == {}


@pytest.mark.parametrize("what", ["item", "untyped storage", "address", "capsule", "asarray"])
def test_only_code_of_the_tree_is_counted(tmp_path, what):
    assert places(tmp_path, READS[what], within="other") == {}


def test_an_earlier_profile_function_is_set_again_and_errors_propagate(tmp_path):
    def profile(*event: object) -> None:
        pass

    sys.setprofile(profile)
    try:
        with pytest.raises(ZeroDivisionError):
            places(tmp_path, "1 / 0")
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
