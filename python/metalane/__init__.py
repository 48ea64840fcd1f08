"""A Metal compute runtime for LLM inference whose .metal kernels also run on CPUs."""

from __future__ import annotations

import atexit as _atexit

import ml_dtypes as _ml_dtypes
import numpy as _np

from . import _core, check, cpu
from ._core import (
    Buffer,
    Capture,
    CommandEncoder,
    ComputeGraph,
    Device,
    DeviceInfo,
    DeviceLimits,
    FusedGraph,
    Fusion,
    GpuCapture,
    GraphNode,
    GraphProblem,
    KernelRegistry,
    KernelSignature,
    Pipeline,
    ReorderedGraph,
    StructLayout,
    Ticket,
    devices,
    from_dlpack,
)
from .compiled import CompiledKernel, CompiledSource
from .errors import (
    ArgumentError,
    CheckError,
    CommandBufferError,
    CompileError,
    DeviceError,
    DTypeError,
    Error,
    GgufError,
    KernelNotFoundError,
    OutOfMemoryError,
    TensorNotFoundError,
    TimeoutError,
)
from .gguf import GgmlType, GgmlTypeInfo, GgufFile, TensorInfo, dequantize, ggml_type_info, ggml_types
from .ops.acceptance_model import AcceptanceCalibration, AcceptanceModel
from .ops.dflash2_selector import (
    DFLASH2_CANDIDATES,
    DFLASH2_MAX_LANES,
    DFLASH2_MAX_POSITIONS,
    DFLASH2_SELECTOR_RANK,
    DFLASH2_SHARDS,
    DFLASH2_VERIFY_COSTS,
    DFlash2SelectorBuffers,
    DFlash2SelectorParams,
    DFlash2VerifyRowsParams,
    dispatch_dflash2_selector,
    dispatch_dflash2_verify_rows,
)
from .ops.ggml import (
    EmbeddingGgmlParams,
    EmbeddingQ2KParams,
    GgmlPlan,
    GgmlPolicy,
    GgmlQuantizedMatmulIdParams,
    GgmlQuantizedMatmulParams,
    GgmlRule,
    IdMmScratch,
    embedding_gather_ggml,
    embedding_gather_q2_k,
    quantized_matmul_batched_mv,
    quantized_matmul_ggml,
    quantized_matmul_id_ggml,
    quantized_matmul_id_ggml_pooled,
    quantized_matmul_id_ggml_pooled_pair,
    quantized_matmul_id_ggml_pooled_slotted,
    quantized_matmul_q2_k_batched_mv,
)
from .ops.speculative_rows import (
    SPECULATIVE_ROWS_MAX_GRIDS,
    SPECULATIVE_ROWS_NOWHERE,
    ScatterRowsParams,
    SpeculativeRowsParams,
    dispatch_speculative_rows,
    scatter_rows,
)
from .ops.speculative_verify import (
    SPECULATIVE_MAX_CANDIDATES,
    SPECULATIVE_MAX_ROWS,
    SPECULATIVE_NO_TOKEN,
    SPECULATIVE_SHARD,
    SpeculativeVerifyBuffers,
    SpeculativeVerifyParams,
    dispatch_speculative_verify,
)
from .params import array, bf16, f16, f32, i8, i16, i32, i64, metal_struct, u8, u16, u32, u64, vec
from .verify_costs import VerifyCostTable

__version__ = _core.VERSION

float32 = _np.dtype("float32")
float16 = _np.dtype("float16")
bfloat16 = _np.dtype(_ml_dtypes.bfloat16)
uint8 = _np.dtype("uint8")
int8 = _np.dtype("int8")
uint16 = _np.dtype("uint16")
int16 = _np.dtype("int16")
uint32 = _np.dtype("uint32")
int32 = _np.dtype("int32")
uint64 = _np.dtype("uint64")
int64 = _np.dtype("int64")

# While the interpreter is whole: what is in flight reads memory that Python objects own.
_atexit.register(_core._finish_work)

__all__ = [
    "DFLASH2_CANDIDATES",
    "DFLASH2_MAX_LANES",
    "DFLASH2_MAX_POSITIONS",
    "DFLASH2_SELECTOR_RANK",
    "DFLASH2_SHARDS",
    "DFLASH2_VERIFY_COSTS",
    "SPECULATIVE_MAX_CANDIDATES",
    "SPECULATIVE_MAX_ROWS",
    "SPECULATIVE_NO_TOKEN",
    "SPECULATIVE_ROWS_MAX_GRIDS",
    "SPECULATIVE_ROWS_NOWHERE",
    "SPECULATIVE_SHARD",
    "AcceptanceCalibration",
    "AcceptanceModel",
    "ArgumentError",
    "Buffer",
    "Capture",
    "CheckError",
    "CommandBufferError",
    "CommandEncoder",
    "CompileError",
    "CompiledKernel",
    "CompiledSource",
    "ComputeGraph",
    "DFlash2SelectorBuffers",
    "DFlash2SelectorParams",
    "DFlash2VerifyRowsParams",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceInfo",
    "DeviceLimits",
    "EmbeddingGgmlParams",
    "EmbeddingQ2KParams",
    "Error",
    "FusedGraph",
    "Fusion",
    "GgmlPlan",
    "GgmlPolicy",
    "GgmlQuantizedMatmulIdParams",
    "GgmlQuantizedMatmulParams",
    "GgmlRule",
    "GgmlType",
    "GgmlTypeInfo",
    "GgufError",
    "GgufFile",
    "GpuCapture",
    "GraphNode",
    "GraphProblem",
    "IdMmScratch",
    "KernelNotFoundError",
    "KernelRegistry",
    "KernelSignature",
    "OutOfMemoryError",
    "Pipeline",
    "ReorderedGraph",
    "ScatterRowsParams",
    "SpeculativeRowsParams",
    "SpeculativeVerifyBuffers",
    "SpeculativeVerifyParams",
    "StructLayout",
    "TensorInfo",
    "TensorNotFoundError",
    "Ticket",
    "TimeoutError",
    "VerifyCostTable",
    "__version__",
    "array",
    "bf16",
    "bfloat16",
    "check",
    "cpu",
    "dequantize",
    "devices",
    "dispatch_dflash2_selector",
    "dispatch_dflash2_verify_rows",
    "dispatch_speculative_rows",
    "dispatch_speculative_verify",
    "embedding_gather_ggml",
    "embedding_gather_q2_k",
    "f16",
    "f32",
    "float16",
    "float32",
    "from_dlpack",
    "ggml_type_info",
    "ggml_types",
    "i8",
    "i16",
    "i32",
    "i64",
    "int8",
    "int16",
    "int32",
    "int64",
    "metal_struct",
    "quantized_matmul_batched_mv",
    "quantized_matmul_ggml",
    "quantized_matmul_id_ggml",
    "quantized_matmul_id_ggml_pooled",
    "quantized_matmul_id_ggml_pooled_pair",
    "quantized_matmul_id_ggml_pooled_slotted",
    "quantized_matmul_q2_k_batched_mv",
    "scatter_rows",
    "u8",
    "u16",
    "u32",
    "u64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "vec",
]
