"""One checkpoint: what is written is what is read, by us and by safetensors itself."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from checkpoint_making import (
    GRACE,
    assert_same,
    begin_write,
    manifest_of,
    shared_of,
    write_whole_checkpoint,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from phalanx.adapters.torch_models import from_pairs, save_state
from phalanx.core.errors import InputError
from phalanx.sync.state.layout import make_layout, trainable
from phalanx.train.checkpoint import (
    checkpoint_index as shelf,
)
from phalanx.train.checkpoint import (
    tensor_files as files,
)
from phalanx.train.checkpoint.checkpoint_manifest import (
    SHARED,
    CheckpointManifest,
    FileRecord,
    FlatLayout,
    OptimizerLayout,
    PlaceRecord,
)
from phalanx.train.checkpoint.writer import Writer

DTYPES = list(files._DTYPES)


@st.composite
def any_tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    found = {}
    for name in draw(st.sets(st.text(min_size=1, max_size=8), max_size=6)):
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        found[name] = torch.randint(0, 2, shape).to(dtype)
    return found


@settings(deadline=None, max_examples=25)
@given(any_tensors())
def test_what_is_written_is_what_safetensors_reads(tensors: dict[str, Tensor]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        record = files.write_tensors(path, tensors)
        data = path.read_bytes()
        assert record == FileRecord(len(data), hashlib.sha256(data).hexdigest())
        found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert torch.equal(found[name].to(torch.complex64), value.to(torch.complex64))


def test_wide_complex_numbers_are_pairs_in_the_files_and_come_back(tmp_path: Path) -> None:
    value = torch.randn(3, 2, dtype=torch.complex128)
    tensors = {"w": value, "turned": value.t().conj(), "x": torch.ones(2)}
    for path in (tmp_path / "by us", tmp_path / "by them"):
        if path.name == "by us":
            files.write_tensors(path, tensors)
        else:
            save_state(tensors, path)
        found = load_file(path)
        assert found["w:complex128"].shape == (3, 2, 2)
        assert_same(from_pairs(found), {name: v.resolve_conj() for name, v in tensors.items()})


def test_files_longer_than_a_chunk_are_whole(tmp_path: Path) -> None:
    tensors = {"long": torch.randn(3 * files.CHUNK // 8 + 1), "turned": torch.randn(3, 5).t()}
    chunks: list[str] = []
    files.write_tensors(tmp_path / "x.safetensors", tensors, chunks.append)
    assert_same(load_file(tmp_path / "x.safetensors"), tensors)
    assert chunks.count("chunk of x.safetensors") == 4  # the header, two of "long", "turned"


def test_what_is_loaded_outlives_the_file(tmp_path: Path) -> None:
    write_whole_checkpoint(tmp_path, 1)
    path, manifest, _ = shelf.newest_valid(tmp_path)
    found = files.load(path, manifest, None)
    with (path / SHARED).open("r+b") as file:
        file.write(b"\xff" * manifest.files[SHARED].bytes)
    assert_same(found, shared_of(1))


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    go_on = threading.Event()
    writer = Writer(tmp_path, 0, 1, 1, patience=0.05, steps=lambda _: held(go_on))
    begin_write(writer, 1, 0, 1)
    assert not writer.finish(0.05)
    begin_write(writer, 2, 0, 1)  # waits in vain, and is left out
    assert writer.problem == "checkpoint 2 was skipped: the previous one is still being written"
    go_on.set()
    assert writer.begin(2)
    assert shelf.numbers(tmp_path) == [1]
    begin_write(writer, 2, 0, 1)
    assert writer.finish(GRACE)
    assert shelf.numbers(tmp_path) == [2]


def held(event: threading.Event) -> None:
    assert event.wait(GRACE)


class Net(nn.Module):
    """Tied weights, two dtypes, a frozen parameter, buffers, channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.embed = nn.Embedding(7, 5)
        self.out = nn.Linear(5, 7)
        self.out.weight = self.embed.weight
        self.wide = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
        self.scalar = nn.Parameter(torch.tensor(3.0))
        self.still = nn.Parameter(torch.randn(2), requires_grad=False)


def saved(model: nn.Module, folder: Path) -> tuple[Path, CheckpointManifest]:
    """``model`` as a checkpoint of the one worker that trains it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared, layouts = {}, []
    for j, dtype in enumerate((torch.float32, torch.float64)):
        own = [(g, p) for g, p in trainable(optimizer) if p.dtype == dtype]
        layout = make_layout(own, 2)
        flat = torch.empty(layout.size, dtype=dtype)
        for place, (_, parameter) in zip(layout.places, own, strict=True):
            place.view(flat).copy_(parameter.detach())
        shared[f"o0.parameters.{j}"] = flat
        layouts.append(files.describe(layout, [names[id(p)] for _, p in own]))
    shared |= {f"buffer.{n}": b for n, b in model.named_buffers()}
    shared |= {f"frozen.{n}": p for n, p in model.named_parameters() if not p.requires_grad}
    shared["o0.momentum.0"] = torch.zeros(3)
    manifest = manifest_of(1, 1)
    manifest.optimizers[:] = [OptimizerLayout("SGD", layouts)]
    writer = Writer(folder, 0, 1, 1)
    writer.write(1, {}, manifest, shared)
    assert writer.finish(GRACE)
    path, manifest, _ = shelf.newest_valid(folder)
    return path, manifest


def test_export_is_the_plain_state_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Net().to(memory_format=torch.channels_last)
    state = files.state_dict(*saved(model, tmp_path))
    assert_same(state, {name: value.detach() for name, value in model.state_dict().items()})
    assert all(value.is_contiguous() for value in state.values())
    save_file(state, tmp_path / "plain.safetensors")  # refuses tensors that share memory
    torch.manual_seed(2)
    other = Net()
    other.load_state_dict(load_file(tmp_path / "plain.safetensors"))
    assert torch.equal(other.convolution.weight, model.convolution.weight)


@pytest.mark.parametrize(
    "place",
    [
        PlaceRecord(["w"], 0, 4, 0, [2, 3], [3, 1]),  # more than its part
        PlaceRecord(["w"], 0, 6, 0, [2, 3], [4, 1]),  # reaches beyond it
        PlaceRecord(["w"], 4, 10, 0, [2, 3], [3, 1]),  # its part reaches beyond the buffer
        PlaceRecord(["w"], 6, 2, 0, [2], [1]),
        PlaceRecord(["w"], 0, 6, 0, [6], []),
        PlaceRecord(["w"], 0, 6, 0, [10**12], [0]),  # would fill the memory
        PlaceRecord([], 9, 9, 0, [1], [1]),
    ],
)
def test_a_place_that_lies_is_refused(place: PlaceRecord) -> None:
    manifest = manifest_of(1, 1)
    manifest.optimizers[:] = [OptimizerLayout("SGD", [FlatLayout("float32", 8, [place])])]
    with pytest.raises(InputError, match="is damaged"):
        files.named_parameters(manifest, {"o0.parameters.0": torch.zeros(8)})


@pytest.mark.parametrize(
    "shared",
    [
        {},
        {"o0.parameters.0": torch.zeros(999)},
        {"o0.parameters.0": torch.zeros(1000, dtype=torch.float64)},
        {"o0.parameters.0": torch.zeros(1000, 1)},
    ],
)
def test_a_buffer_that_does_not_fit_its_layout_is_refused(shared: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match=r"o0\.parameters\.0"):
        files.named_parameters(manifest_of(1, 1), shared)
