"""The CUDA text as files: every one compiles by itself, and Python reads its structs as C++ lays them out."""

import ctypes
import re

import emulator
import pytest

from seqloom.kernels import heuristics, registry
from seqloom.kernels.cuda.runtime import launch, nvrtc

FILES = sorted(path.relative_to(nvrtc.TEXT).as_posix() for path in nvrtc.TEXT.glob("*/*.cu*"))
compiler = pytest.mark.skipif(emulator.COMPILER is None, reason="no g++ to compile the kernels' text with")


def check_syntax(folder, text):
    (folder / "text.cpp").write_text(text)
    emulator.compile_text(folder, "-fsyntax-only", f"-I{nvrtc.TEXT}", "text.cpp")


@compiler
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FILES)
def test_a_file_includes_what_it_needs(tmp_path, name):
    check_syntax(tmp_path, f'#include "{name}"\n')


@compiler
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".cu")])
def test_structs_of_arguments_have_the_layout_of_cpp(tmp_path, name):
    kernels = re.findall(r"KERNEL\(\s*(\w+),", nvrtc.read_source(name))
    kinds = {kind.__name__: kind for kind in (launch.read_arguments(name, kernel) for kernel in kernels)}
    lines = [f"static_assert(sizeof({n}) == {ctypes.sizeof(kind)});" for n, kind in kinds.items()]
    for n, kind in kinds.items():
        for field, _ in launch._list_fields(kind):
            member = re.sub(r"_(\d+)$", r"[\1]", field.removesuffix("_"))  # keep_0 is keep[0], from_ is from
            lines.append(f"static_assert(offsetof({n}, {member}) == {getattr(kind, field).offset});")
    assert kinds
    check_syntax(tmp_path, f'#include <cstddef>\n#include "{name}"\n' + "\n".join(lines))


def test_the_struct_that_carries_packets_follows_the_arguments():
    arguments = launch.read_arguments("gated/forward.cu", "gated_forward")
    extended = launch.read_struct("runtime/packet.cuh", "GroupArguments", arguments)
    assert [name for name, _ in launch._list_fields(extended)][-3:] == ["packets", "begin", "group_rows"]
    assert extended.packets.offset == ctypes.sizeof(arguments)


def test_arguments_are_packed_by_name_with_nested_structs():
    arguments = launch.pack(launch.read_struct("attn_rnn/block_forward.cu", "Forward"), {"w": {"q": 5}, "T": 7})
    assert (arguments.w.q, arguments.T, arguments.B, arguments.x) == (5, 7, 0, None)


def test_kernels_of_tiles_declare_the_multiple_that_they_check():
    own = [k for k in registry.KERNELS if k.backend in ("cuda", "row", "slots", "cluster", "grid") and not k.compiles]
    whole = {k.name for k in own if k.hidden_multiple == heuristics.HIDDEN_MULTIPLE}
    assert whole == {"attn_rnn_slots", "ln_gru_cuda", "ln_gru_grid", "ln_lstm_cuda", "ln_lstm_grid"}
    assert {k.hidden_multiple for k in own if k.name not in whole} == {1}
