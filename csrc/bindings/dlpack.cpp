// DLPack, both ways: shared memory of every device is exported as host memory (kDLCPU, 0).
#include <algorithm>
#include <cstring>

#include "bindings/bindings.h"

namespace metalane::python {

namespace {

// The stable part of DLPack's binary interface (https://dmlc.github.io/dlpack, version 1.0).
struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  std::uint32_t version_major;
  std::uint32_t version_minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
constexpr std::uint64_t kReadOnlyFlag = 1;
constexpr std::uint64_t kCopiedFlag = 2;
constexpr std::int32_t kCpu = 1;
constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4;
constexpr const char* kName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

DLDataType dl_type(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::float32:
    case DType::float16:
      return {kFloat, bits, 1};
    case DType::bfloat16:
      return {kBfloat, bits, 1};
    case DType::uint8:
    case DType::uint16:
    case DType::uint32:
    case DType::uint64:
      return {kUInt, bits, 1};
    case DType::int8:
    case DType::int16:
    case DType::int32:
    case DType::int64:
      return {kInt, bits, 1};
  }
  return {kUInt, 8, 1};
}

DType dtype_of(const DLDataType& type) {
  for (int i = 0; i <= static_cast<int>(DType::int64); ++i) {
    const auto dtype = static_cast<DType>(i);
    const DLDataType known = dl_type(dtype);
    if (type.lanes == 1 && known.code == type.code && known.bits == type.bits) return dtype;
  }
  throw DTypeError("from_dlpack", "dtype", "an element type of metalane",
                   "DLPack code " + std::to_string(type.code) + ", " + std::to_string(type.bits) + " bits, " +
                       std::to_string(type.lanes) + " lanes");
}

// An exported tensor with everything that its pointers name.
template <typename Managed>
struct Export {
  Managed managed;
  HostView view;
  std::int64_t shape[Shape::max_rank];
  std::int64_t strides[Shape::max_rank];

  explicit Export(const Buffer& buffer) : managed{}, view(buffer, "Buffer.__dlpack__") {
    const Shape& dims = buffer.shape();
    std::int64_t stride = 1;
    for (std::size_t axis = dims.rank(); axis-- > 0;) {
      shape[axis] = static_cast<std::int64_t>(dims[axis]);
      strides[axis] = stride;
      stride *= std::max<std::int64_t>(shape[axis], 1);
    }
    managed.dl_tensor = {
        view.address(), {kCpu, 0}, static_cast<std::int32_t>(dims.rank()), dl_type(buffer.dtype()), shape,
        strides,        0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { delete static_cast<Export*>(self->manager_ctx); };
  }
};

// A capsule that nobody consumed still owns its tensor.
template <typename Managed>
void destroy_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <typename Managed>
nb::object export_capsule(std::unique_ptr<Export<Managed>> exported, const char* name,
                          void (*destructor)(PyObject*)) {
  nb::object capsule = nb::steal(PyCapsule_New(&exported->managed, name, destructor));
  if (!capsule.is_valid()) throw nb::python_error();
  (void)exported.release();  // the capsule's now
  return capsule;
}

Buffer copy_of(const Buffer& buffer) {
  const HostView view(buffer, "Buffer.__dlpack__");
  return buffer.device().copy_of(view.address(), buffer.shape(), buffer.dtype());
}

// What a consumer's tensor says, and who frees it.
struct Imported {
  DLTensor tensor;
  bool readonly;
  std::shared_ptr<void> owner;
};

template <typename Managed>
std::shared_ptr<void> take_capsule(nb::handle capsule, const char* name, const char* used_name) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (managed == nullptr) throw nb::python_error();
  std::shared_ptr<void> owner = deferred_owner(managed, [](void* tensor) {
    auto* const taken = static_cast<Managed*>(tensor);
    if (taken->deleter != nullptr) taken->deleter(taken);
  });
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw nb::python_error();
  return owner;
}

Imported import_capsule(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName) != 0) {
    const auto* managed =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersionedName));
    if (managed->version_major > 1) {
      throw ArgumentError("from_dlpack", "DLPack version", "1.x", std::to_string(managed->version_major));
    }
    return {managed->dl_tensor, (managed->flags & kReadOnlyFlag) != 0,
            take_capsule<DLManagedTensorVersioned>(capsule, kVersionedName, "used_dltensor_versioned")};
  }
  if (PyCapsule_IsValid(capsule.ptr(), kName) != 0) {
    const auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kName));
    return {managed->dl_tensor, false, take_capsule<DLManagedTensor>(capsule, kName, "used_dltensor")};
  }
  throw DTypeError("from_dlpack", "x.__dlpack__()", "a DLPack capsule that was not used yet",
                   repr_of(capsule));
}

Shape contiguous_shape(const DLTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > static_cast<std::int32_t>(Shape::max_rank)) {
    throw ArgumentError("from_dlpack", "dimensions", "at most 8", std::to_string(tensor.ndim));
  }
  std::uint64_t dims[Shape::max_rank];
  std::int64_t expected = 1;
  bool contiguous = true;
  bool empty = false;
  for (std::int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
    const std::int64_t dim = tensor.shape[axis];
    if (dim < 0) throw ArgumentError("from_dlpack", "shape", "not negative", std::to_string(dim));
    dims[axis] = static_cast<std::uint64_t>(dim);
    empty = empty || dim == 0;
    if (tensor.strides != nullptr && dim > 1 && tensor.strides[axis] != expected) contiguous = false;
    if (__builtin_mul_overflow(expected, std::max<std::int64_t>(dim, 1), &expected)) {
      throw ArgumentError("from_dlpack", "shape", "a size below 2^63", "a larger one");
    }
  }
  if (!contiguous && !empty) {
    throw ArgumentError("from_dlpack", "strides", "row-major contiguous (copy it first)", "other strides");
  }
  return Shape(std::span<const std::uint64_t>(dims, static_cast<std::size_t>(tensor.ndim)));
}

bool is_pair(nb::handle value) { return nb::isinstance<nb::tuple>(value) && PyTuple_Size(value.ptr()) == 2; }

nb::object call_dlpack(nb::handle source) {
  nb::object method = nb::getattr(source, "__dlpack__", nb::none());
  if (method.is_none() || !nb::hasattr(source, "__dlpack_device__")) {
    throw DTypeError("from_dlpack", "x", "an object with __dlpack__ and __dlpack_device__",
                     type_name_of(source));
  }
  nb::object device = source.attr("__dlpack_device__")();
  if (!is_pair(device)) {
    throw DTypeError("from_dlpack", "x.__dlpack_device__()", "a tuple (device type, device id)",
                     repr_of(device));
  }
  if (!device[0].equal(nb::int_(kCpu))) {
    throw ArgumentError("from_dlpack", "x", "in host memory (DLPack device (1, 0))", repr_of(device));
  }
  nb::dict keywords;
  keywords["max_version"] = nb::make_tuple(1, 0);
  try {
    return method(**keywords);
  } catch (nb::python_error& error) {
    // Producers from before DLPack 1.0 know no max_version.
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method();
}

}  // namespace

nb::object dlpack_capsule(const Buffer& buffer, nb::handle max_version, nb::handle dl_device,
                          nb::handle copy) {
  if (!dl_device.is_none() && !(is_pair(dl_device) && dl_device.equal(nb::make_tuple(kCpu, 0)))) {
    PyErr_Format(PyExc_BufferError, "Buffer.__dlpack__: dl_device must be (1, 0), got %R", dl_device.ptr());
    throw nb::python_error();
  }
  check_live(buffer, "Buffer.__dlpack__");
  wait_for_buffer(buffer);
  const bool copied = copy.is(nb::handle(Py_True));
  const Buffer source = copied ? copy_of(buffer) : buffer;
  bool versioned = false;
  if (!max_version.is_none()) {
    if (!is_pair(max_version)) {
      throw DTypeError("Buffer.__dlpack__", "max_version", "a tuple (major, minor) or None",
                       repr_of(max_version) + " (" + type_name_of(max_version) + ")");
    }
    versioned = u64_from(max_version[0], "Buffer.__dlpack__", "max_version") >= 1;
  }
  if (!versioned) {
    if (source.readonly()) {
      PyErr_SetString(PyExc_BufferError,
                      "Buffer.__dlpack__: a read-only buffer needs a consumer of DLPack 1.0 (max_version)");
      throw nb::python_error();
    }
    return export_capsule(std::make_unique<Export<DLManagedTensor>>(source), kName,
                          [](PyObject* capsule) { destroy_capsule<DLManagedTensor>(capsule, kName); });
  }
  auto exported = std::make_unique<Export<DLManagedTensorVersioned>>(source);
  exported->managed.version_major = 1;
  exported->managed.version_minor = 0;
  exported->managed.flags = (source.readonly() ? kReadOnlyFlag : 0) | (copied ? kCopiedFlag : 0);
  return export_capsule(std::move(exported), kVersionedName, [](PyObject* capsule) {
    destroy_capsule<DLManagedTensorVersioned>(capsule, kVersionedName);
  });
}

Buffer buffer_from_dlpack(nb::handle source, const Device& device) {
  drain_deferred();
  nb::object capsule = call_dlpack(source);
  const Imported imported = import_capsule(capsule);
  if (imported.tensor.device.device_type != kCpu) {
    throw ArgumentError("from_dlpack", "x", "in host memory (DLPack device type 1)",
                        "device type " + std::to_string(imported.tensor.device.device_type));
  }
  const DType dtype = dtype_of(imported.tensor.dtype);
  const Shape shape = contiguous_shape(imported.tensor);
  auto* const address = static_cast<std::uint8_t*>(imported.tensor.data) + imported.tensor.byte_offset;
  return device.wrap(address, shape, dtype, imported.readonly, imported.owner);
}

}  // namespace metalane::python
