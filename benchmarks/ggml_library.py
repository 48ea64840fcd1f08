"""ggml as a peer: its CPU backend by ctypes, from whichever packages hold a build of it.

Tensors lie in memory of the caller, so that both sides read the same weights. A graph of one operator runs on a thread
pool of ggml's, which is paused between measurements: its threads spin for long, and would slow down who comes next.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import gguf
import numpy as np

# Package, and where in it the libraries lie. The first is built from source when it is installed, for the machine at
# hand; the second is a prebuilt one; the third comes with llama.cpp (`make bench LLAMA=1`).
PACKAGES = {
    "ggml": ("ggml", "lib"),
    "ggml, prebuilt": ("libggml", "lib64"),
    "llama.cpp's ggml": ("llama_cpp", "lib"),
}
F32, I32 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.I32
FEATURES = ("avx2", "avx512", "avx512_vnni", "amx_int8", "neon", "dotprod", "matmul_int8", "llamafile")


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


POINTER, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
# What is called, with its result and arguments.
_BASE = {
    "ggml_init": (POINTER, _InitParams),
    "ggml_free": (None, POINTER),
    "ggml_version": (ctypes.c_char_p,),
    "ggml_new_tensor": (POINTER, POINTER, INT, INT, ctypes.POINTER(ctypes.c_int64)),
    "ggml_nbytes": (SIZE, POINTER),
    "ggml_mul_mat": (POINTER, POINTER, POINTER, POINTER),
    "ggml_mul_mat_id": (POINTER, POINTER, POINTER, POINTER, POINTER),
    "ggml_get_rows": (POINTER, POINTER, POINTER, POINTER),
    "ggml_new_graph_custom": (POINTER, POINTER, SIZE, ctypes.c_bool),
    "ggml_build_forward_expand": (None, POINTER, POINTER),
    "ggml_backend_tensor_alloc": (INT, POINTER, POINTER, POINTER),
    "ggml_backend_cpu_buffer_from_ptr": (POINTER, POINTER, SIZE),
    "ggml_backend_graph_compute": (INT, POINTER, POINTER),
    "ggml_backend_buffer_free": (None, POINTER),
    "ggml_backend_free": (None, POINTER),
    "ggml_threadpool_params_init": (None, POINTER, INT),
}
_CPU = {
    "ggml_backend_cpu_init": (POINTER,),
    "ggml_backend_cpu_set_n_threads": (None, POINTER, INT),
    "ggml_backend_cpu_set_threadpool": (None, POINTER, POINTER),
    "ggml_threadpool_new": (POINTER, POINTER),
    "ggml_threadpool_free": (None, POINTER),
    "ggml_threadpool_pause": (None, POINTER),
    "ggml_threadpool_resume": (None, POINTER),
    **{f"ggml_cpu_has_{feature}": (INT,) for feature in FEATURES},
}


class Library:
    """The functions of one build, with their C types."""

    def __init__(self, folder: Path) -> None:
        self.base = _declare(ctypes.CDLL(str(folder / "libggml-base.so")), _BASE)
        self.cpu = _declare(ctypes.CDLL(str(folder / "libggml-cpu.so")), _CPU)

    def describe(self) -> str:
        has = [feature for feature in FEATURES if getattr(self.cpu, f"ggml_cpu_has_{feature}")()]
        return f"{self.base.ggml_version().decode()} ({', '.join(has)})"


def _declare(library: ctypes.CDLL, functions: dict[str, tuple]) -> ctypes.CDLL:
    for name, (result, *arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@cache
def libraries() -> dict[str, Library]:
    """Those that are installed."""
    found = {}
    for name, (package, folder) in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found[name] = Library(Path(spec.origin).parent / folder)
    return found


class Ggml:
    """One build of ggml with a thread pool of its own. Tensors live as long as this does."""

    def __init__(self, library: Library, threads: int) -> None:
        self._base, self._cpu = library.base, library.cpu
        self.threads = threads
        # Of tensors and graphs, some kilobytes each; what is not used is not touched.
        self._context = self._base.ggml_init(_InitParams(256 << 20, None, True))
        self._backend = self._cpu.ggml_backend_cpu_init()
        params = ctypes.create_string_buffer(
            4096
        )  # a ggml_threadpool_params, whose fields change with versions
        self._base.ggml_threadpool_params_init(params, threads)
        self._pool = self._cpu.ggml_threadpool_new(params)
        self._cpu.ggml_backend_cpu_set_n_threads(self._backend, threads)
        self._cpu.ggml_backend_cpu_set_threadpool(self._backend, self._pool)
        self._cpu.ggml_threadpool_pause(self._pool)
        self._held: list[np.ndarray] = []
        self._inputs: dict[int, np.ndarray] = {}  # by the id of the caller's array, which is held
        self._outputs: dict[int, np.ndarray] = {}  # by bytes: graphs share them, as launches share a buffer
        self._buffers: list[int] = []
        ones = self.tensor(aligned(np.ones((256, 256), np.float32)), F32, (256, 256))
        self._small, _ = self.mul_mat([ones], np.ones((1, 256), np.float32))

    def close(self) -> None:
        self._base.ggml_backend_free(self._backend)
        self._cpu.ggml_threadpool_free(self._pool)
        for buffer in self._buffers:
            self._base.ggml_backend_buffer_free(buffer)
        self._base.ggml_free(self._context)

    def _place(self, tensor: int, memory: np.ndarray) -> int:
        assert memory.flags.c_contiguous
        buffer = self._base.ggml_backend_cpu_buffer_from_ptr(memory.ctypes.data, memory.nbytes)
        if self._base.ggml_backend_tensor_alloc(buffer, tensor, memory.ctypes.data) != 0:
            raise SystemExit("ggml refuses a tensor's memory")
        self._held.append(memory)
        self._buffers.append(buffer)
        return tensor

    def tensor(self, memory: np.ndarray, ggml_type: int, shape: Sequence[int]) -> int:
        """Of `shape` in ggml's order (rows' length first), upon `memory`, which begins at a multiple of 64 bytes."""
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        made = self._base.ggml_new_tensor(self._context, int(ggml_type), len(shape), sizes)
        return self._place(made, memory)

    def _input(self, values: np.ndarray) -> np.ndarray:
        if id(values) not in self._inputs:
            self._held.append(values)
            self._inputs[id(values)] = aligned(values)
        return self._inputs[id(values)]

    def _graph(self, results: Sequence[int]) -> Callable[[], None]:
        graph = self._base.ggml_new_graph_custom(self._context, 8 * len(results) + 8, False)
        for result in results:
            self._base.ggml_build_forward_expand(graph, result)

        def compute() -> None:
            if self._base.ggml_backend_graph_compute(self._backend, graph) != 0:
                raise SystemExit("ggml could not compute")

        return compute

    def mul_mat(self, weights: Sequence[int], x: np.ndarray) -> tuple[Callable[[], None], np.ndarray]:
        """What computes x W^T for each of the weights; the last one's result [m, n]."""
        m, k = x.shape
        inputs = self.tensor(self._input(x), F32, (k, m))
        results = [self._base.ggml_mul_mat(self._context, weight, inputs) for weight in weights]
        return self._with_output(results, m)

    def mul_mat_id(
        self, weight: int, x: np.ndarray, ids: np.ndarray
    ) -> tuple[Callable[[], None], np.ndarray]:
        """x [m, k] by the experts that `ids` [m, top_k] names: result [m * top_k, n]."""
        (m, k), top_k = x.shape, ids.shape[1]
        inputs = self.tensor(self._input(x), F32, (k, 1, m))
        chosen = self.tensor(self._input(ids), I32, (top_k, m))
        result = self._base.ggml_mul_mat_id(self._context, weight, inputs, chosen)
        return self._with_output([result], m * top_k)

    def get_rows(self, weight: int, ids: np.ndarray) -> tuple[Callable[[], None], np.ndarray]:
        chosen = self.tensor(self._input(ids), I32, (len(ids),))
        return self._with_output([self._base.ggml_get_rows(self._context, weight, chosen)], len(ids))

    def _with_output(self, results: Sequence[int], rows: int) -> tuple[Callable[[], None], np.ndarray]:
        nbytes = self._base.ggml_nbytes(results[-1])
        if nbytes not in self._outputs:
            self._outputs[nbytes] = aligned(np.full(nbytes // 4, np.nan, np.float32))
        output = self._outputs[nbytes]
        for result in results:
            self._place(result, output)
        return self._graph(results), output.reshape(rows, -1)

    def awake(self, measure: Callable[[], float]) -> float:
        """`measure()` while the pool's threads wait for it awake, as they do within a model's graph."""
        self._cpu.ggml_threadpool_resume(self._pool)
        self._small()
        seconds = measure()
        self._cpu.ggml_threadpool_pause(self._pool)
        return seconds


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes."""
    values = np.ascontiguousarray(values)
    whole = np.empty(values.nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    copy = whole[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
