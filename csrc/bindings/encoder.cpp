// The command encoder: dispatch, copies, capture, labels, commit.
#include <nanobind/stl/optional.h>

#include <array>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/checked_arguments.h"
#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/registry.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

constexpr const char* kDispatch = "CommandEncoder.dispatch";

// `kept` holds the pipeline where nothing else does.
const Pipeline& pipeline_from(const Encoder& encoder, nb::handle kernel, nb::handle constants,
                              Pipeline& kept) {
  if (is_pipeline(kernel)) {
    if (!constants.is_none()) {
      throw ArgumentError(kDispatch, "constants", "None with a pipeline (they are part of it)",
                          repr_of(constants));
    }
    return *nb::inst_ptr<Pipeline>(kernel);
  }
  if (!nb::isinstance<nb::str>(kernel)) {
    throw DTypeError(kDispatch, "kernel", "a kernel's name or a Pipeline",
                     repr_of(kernel) + " (" + type_name_of(kernel) + ")");
  }
  const std::string name = text_from(kernel, kDispatch, "kernel");
  const std::vector<ConstantValue> values = constants_from(constants, kDispatch);
  // Building may take a compiler's time.
  Unlocked unlocked;
  kept = values.empty() ? encoder.core.state()->device()->registry()->default_pipeline(name)
                        : encoder.core.device().registry().pipeline(name, values);
  return kept;
}

Grid grid_from(nb::handle threadgroups, nb::handle threads, nb::handle threads_per_threadgroup) {
  if (threadgroups.is_none() == threads.is_none()) {
    throw ArgumentError(kDispatch, "threadgroups and threads", "one of the two",
                        threads.is_none() ? "neither" : "both");
  }
  if (threads_per_threadgroup.is_none()) {
    throw ArgumentError(kDispatch, "threads_per_threadgroup", "an integer or one to three integers", "None");
  }
  const Size3 group = size3_from(threads_per_threadgroup, kDispatch, "threads_per_threadgroup");
  if (!threads.is_none()) return Grid::threads(size3_from(threads, kDispatch, "threads"), group);
  if (is_buffer(threadgroups)) return Grid::indirect(*nb::inst_ptr<Buffer>(threadgroups), group);
  return Grid::threadgroups(size3_from(threadgroups, kDispatch, "threadgroups"), group);
}

class ThreadgroupSizes {
 public:
  explicit ThreadgroupSizes(nb::handle value) {
    if (value.is_none()) return;
    if (integer_from(value).is_valid()) {
      add(0, value);
    } else if (nb::isinstance<nb::dict>(value)) {
      nb::object items = nb::steal(PyDict_Items(value.ptr()));
      for (Py_ssize_t i = 0; i < PyList_Size(items.ptr()); ++i) {
        PyObject* const item = PyList_GetItem(items.ptr(), i);
        add(u64_from(PyTuple_GetItem(item, 0), kDispatch, "threadgroup_memory"), PyTuple_GetItem(item, 1));
      }
    } else {
      const SequenceItems items = sequence_items(value, sizes_.size());
      if (items.length < 0) {
        throw DTypeError(kDispatch, "threadgroup_memory",
                         "bytes, a sequence of them or a dict {index: bytes}",
                         repr_of(value) + " (" + type_name_of(value) + ")");
      }
      if (!items.tuple.is_valid()) fail_index(static_cast<std::uint64_t>(items.length) - 1);
      for (Py_ssize_t i = 0; i < items.length; ++i) {
        add(static_cast<std::uint64_t>(i), tuple_item(items.tuple.ptr(), i));
      }
    }
  }
  std::span<const ThreadgroupMemory> sizes() const noexcept { return {sizes_.data(), count_}; }

 private:
  [[noreturn]] static void fail_index(std::uint64_t index) {
    throw ArgumentError(kDispatch, "threadgroup_memory", "indices 0 to 30", std::to_string(index));
  }
  void add(std::uint64_t index, nb::handle nbytes) {
    if (index >= sizes_.size() || count_ == sizes_.size()) fail_index(index);
    sizes_[count_++] = {static_cast<std::uint32_t>(index), u64_from(nbytes, kDispatch, "threadgroup_memory")};
  }

  std::size_t count_ = 0;
  std::array<ThreadgroupMemory, ArgumentList::kMaxArguments> sizes_;
};

// The parameters of dispatch(), in order: the first two also by position, the others by keyword only.
enum Parameter : std::size_t {
  kKernel,
  kArgs,
  kThreadgroups,
  kThreads,
  kGroup,
  kMemory,
  kConstants,
  kParameters
};
constexpr std::array<const char*, kParameters> kParameterNames = {
    "kernel",   "args", "threadgroups", "threads", "threads_per_threadgroup", "threadgroup_memory",
    "constants"};
std::array<PyObject*, kParameters> parameter_names;  // interned

std::size_t parameter_called(PyObject* name, std::size_t hint) {
  // Keywords in a call are interned and mostly come in order.
  for (std::size_t i = 0; i < kParameters; ++i) {
    const std::size_t candidate = (hint + i) % kParameters;
    if (parameter_names[candidate] == name) return candidate;
  }
  for (std::size_t i = 0; i < kParameters; ++i) {
    if (PyUnicode_Compare(parameter_names[i], name) == 0) return i;
  }
  PyErr_Format(PyExc_TypeError, "dispatch() got an unexpected keyword argument '%U'", name);
  throw nb::python_error();
}

using DispatchCall = std::array<nb::handle, kParameters>;

DispatchCall read_call(PyObject* const* args, Py_ssize_t positional, PyObject* keywords) {
  DispatchCall call;
  call.fill(Py_None);
  std::uint32_t given = 0;
  if (positional > 2) {
    PyErr_Format(PyExc_TypeError, "dispatch() takes 2 positional arguments, got %zd", positional);
    throw nb::python_error();
  }
  for (Py_ssize_t i = 0; i < positional; ++i) call[static_cast<std::size_t>(i)] = args[i];
  given = (1u << positional) - 1;
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_Size(keywords);
  std::size_t next = kThreadgroups;
  for (Py_ssize_t i = 0; i < named; ++i) {
    const std::size_t parameter = parameter_called(tuple_item(keywords, i), next);
    if ((given >> parameter & 1) != 0) {
      PyErr_Format(PyExc_TypeError, "dispatch() got '%s' twice", kParameterNames[parameter]);
      throw nb::python_error();
    }
    given |= 1u << parameter;
    call[parameter] = args[positional + i];
    next = parameter + 1;
  }
  if ((given & 3) != 3) {
    PyErr_Format(PyExc_TypeError, "dispatch() misses '%s'", (given & 1) == 0 ? "kernel" : "args");
    throw nb::python_error();
  }
  return call;
}

// A method of plain C: nanobind's matching of keywords would cost a tenth of the call.
PyObject* dispatch(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* keywords) {
  return guarded<PyObject*>(nullptr, [&] {
    const DispatchCall call = read_call(args, positional, keywords);
    Encoder& encoder = *nb::inst_ptr<Encoder>(self);
    Pipeline kept;
    const Pipeline& pipeline = pipeline_from(encoder, call[kKernel], call[kConstants], kept);
    ArgumentList list;
    list.read(pipeline, call[kArgs]);
    const Grid grid = grid_from(call[kThreadgroups], call[kThreads], call[kGroup]);
    if (call[kMemory].is_none()) {
      encoder.core.dispatch(pipeline, list.args(), grid);
    } else {
      encoder.core.dispatch(pipeline, list.args(), grid, ThreadgroupSizes(call[kMemory]).sizes());
    }
    return nb::none().release().ptr();
  });
}

void fill(Encoder& self, nb::handle destination, nb::handle value) {
  const Buffer& buffer = object_from<Buffer>(destination, "CommandEncoder.fill", "buffer", "a buffer");
  std::array<std::uint8_t, 8> element;
  pack_scalar(scalar_of(buffer.dtype()), value, element.data(), {"CommandEncoder.fill", "value"});
  self.core.fill(buffer, std::span<const std::uint8_t>(element.data(), size_of(buffer.dtype())));
}

std::vector<AddressRange> ranges_from(nb::handle value, const char* argument) {
  const char* op = "CommandEncoder.set_pending_buffer_ranges";
  constexpr std::uint64_t kMostRanges = 1 << 20;
  const SequenceItems items = sequence_items(value, kMostRanges);
  if (items.length < 0) {
    throw DTypeError(op, argument, "a sequence of buffers or address ranges",
                     repr_of(value) + " (" + type_name_of(value) + ")");
  }
  if (!items.tuple.is_valid()) {
    throw ArgumentError(op, argument, "at most 1,048,576 ranges", std::to_string(items.length));
  }
  std::vector<AddressRange> ranges;
  for (Py_ssize_t i = 0; i < items.length; ++i) {
    nb::handle item = tuple_item(items.tuple.ptr(), i);
    if (is_buffer(item)) {
      ranges.push_back(nb::inst_ptr<Buffer>(item)->range());
      continue;
    }
    if (!nb::isinstance<nb::tuple>(item) || PyTuple_Size(item.ptr()) != 2) {
      throw DTypeError(op, std::string(argument) + "[" + std::to_string(i) + "]",
                       "a buffer or a tuple (begin, end) of addresses", repr_of(item));
    }
    const AddressRange range = {u64_from(PyTuple_GetItem(item.ptr(), 0), op, argument),
                                u64_from(PyTuple_GetItem(item.ptr(), 1), op, argument)};
    if (range.begin > range.end) {
      throw ArgumentError(op, std::string(argument) + "[" + std::to_string(i) + "]", "begin <= end",
                          repr_of(item));
    }
    ranges.push_back(range);
  }
  return ranges;
}

Ticket commit(Encoder& self, nb::handle timeout) {
  const std::optional<double> limit = seconds_from(timeout, "CommandEncoder.commit", "timeout", false);
  drain_deferred();
  Ticket ticket = [&] {
    Unlocked unlocked;
    return self.core.commit(limit);
  }();
  self.ticket = ticket;
  track_ticket(ticket);
  return ticket;
}

// The scope that label() gives.
struct Label {
  nb::object encoder;  // keeps the encoder alive
  std::string name;
  bool pushed = false;
};

// The scope that capture() gives.
struct Capture {
  nb::object encoder;  // keeps the encoder alive
  std::optional<ComputeGraph> graph;
  bool started = false;
};

bool leave_capture(Capture& self, nb::handle exception) {
  if (!std::exchange(self.started, false)) return false;
  CommandEncoder& encoder = nb::inst_ptr<Encoder>(self.encoder)->core;
  if (exception.is_none()) {
    self.graph = encoder.take_capture();
  } else if (encoder.is_open()) {
    encoder.abandon_capture();
  }
  return false;
}

bool leave_encoder(Encoder& self, nb::handle exception) {
  if (!exception.is_none()) {
    self.core.discard();
  } else if (self.core.is_open()) {
    commit(self, nb::none());
  }
  return false;
}

std::string encoder_repr(const Encoder& self) {
  const EncoderCounters counters = self.core.counters();
  return std::string("<CommandEncoder, ") + (self.core.is_open() ? "open" : "closed") + ", " +
         std::to_string(counters.launches) + " launches, " + std::to_string(counters.barriers) + " barriers>";
}

void bind_label(nb::module_& module) {
  nb::class_<Label>(module, "Label", nb::is_final(), nb::type_slots(made_by_runtime),
                    "A label for the launches inside a with block.")
      .def(
          "__enter__",
          [](Label& self) {
            nb::inst_ptr<Encoder>(self.encoder)->core.push_label(self.name);
            self.pushed = true;
          },
          nb::sig("def __enter__(self) -> None"))
      .def(
          "__exit__",
          [](Label& self, nb::handle, nb::handle, nb::handle) {
            CommandEncoder& encoder = nb::inst_ptr<Encoder>(self.encoder)->core;
            if (std::exchange(self.pushed, false) && encoder.is_open()) encoder.pop_label();
            return false;
          },
          "exception_type"_a.none(), "exception"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, exception_type: object, exception: object, traceback: object) -> "
                  "typing.Literal[False]"))
      .def("__repr__", [](const Label& self) { return "<Label '" + self.name + "'>"; });
}

void bind_capture(nb::module_& module) {
  nb::class_<Capture>(module, "Capture", nb::is_final(), nb::type_slots(made_by_runtime),
                      "A capture for the length of a with block.")
      .def(
          "__enter__",
          [](nb::handle self) {
            Capture& capture = *nb::inst_ptr<Capture>(self);
            nb::inst_ptr<Encoder>(capture.encoder)->core.start_capture();
            capture.started = true;
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> Capture"))
      .def(
          "__exit__",
          [](Capture& self, nb::handle type, nb::handle, nb::handle) { return leave_capture(self, type); },
          "exception_type"_a.none(), "exception"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, exception_type: object, exception: object, traceback: object) -> "
                  "typing.Literal[False]"))
      .def_prop_ro(
          "graph",
          [](const Capture& self) {
            if (!self.graph) throw ArgumentError("Capture.graph: the block has not ended, or it raised");
            return *self.graph;
          },
          nb::sig("def graph(self) -> ComputeGraph"), "What the block captured.");
}

void bind_dispatch(nb::class_<Encoder>& encoder) {
  for (std::size_t i = 0; i < kParameters; ++i) {
    parameter_names[i] = PyUnicode_InternFromString(kParameterNames[i]);
  }
  static PyMethodDef method = {
      "dispatch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&dispatch)),
      METH_FASTCALL | METH_KEYWORDS,
      "dispatch($self, kernel, args, *, threadgroups=None, threads=None, threads_per_threadgroup=None, "
      "threadgroup_memory=None, constants=None)\n--\n\n"
      "Records one launch of `kernel` (a name or a Pipeline).\n\n"
      "args: buffers, metal_struct instances, numbers (typed and range-checked by the kernel's signature) or "
      "bytes; by position, or as {index: value}.\n"
      "threadgroups: how many, as 1 to 3 integers, or a u32 buffer of 3 read when the launch starts. Or "
      "threads: how many threads in all; threadgroups at the edges may be smaller.\n"
      "threadgroup_memory: bytes for [[threadgroup(0)]], or by index.\n"
      "constants: function constants by name or index (kernel given by name).\n\n"
      "Raises ArgumentError or DTypeError, with nothing recorded."};
  auto* const type = reinterpret_cast<PyTypeObject*>(encoder.ptr());
  nb::object descriptor = nb::steal(PyDescr_NewMethod(type, &method));
  if (!descriptor.is_valid()) throw nb::python_error();
  encoder.attr("dispatch") = descriptor;
}

void bind_recording(nb::class_<Encoder>& encoder) {
  encoder
      .def(
          "copy",
          [](Encoder& self, nb::handle source, nb::handle destination) {
            constexpr const char* op = "CommandEncoder.copy";
            self.core.copy(object_from<Buffer>(source, op, "src", "a buffer"),
                           object_from<Buffer>(destination, op, "dst", "a buffer"));
          },
          "src"_a.none(), "dst"_a.none(), nb::sig("def copy(self, src: Buffer, dst: Buffer) -> None"),
          "Records a copy of all bytes of `src` to `dst`: equal sizes, no overlap.")
      .def("fill", &fill, "buffer"_a.none(), "value"_a.none(),
           nb::sig("def fill(self, buffer: Buffer, value: int | float) -> None"),
           "Records writing `value` to every element; range-checked for the buffer's dtype.")
      .def(
          "memory_barrier", [](Encoder& self) { self.core.memory_barrier(); },
          "Orders every later launch behind every earlier one.")
      .def(
          "start_capture", [](Encoder& self) { self.core.start_capture(); },
          "From here to take_capture() launches become nodes of a graph instead of being recorded.")
      .def(
          "capture", [](nb::handle self) { return new Capture{nb::borrow(self), std::nullopt}; },
          nb::rv_policy::take_ownership, nb::sig("def capture(self) -> Capture"),
          "A scope whose launches become a graph: `with encoder.capture() as captured: ...`, then "
          "`captured.graph`. Where the block raises, they are dropped and the encoder stays usable.")
      .def_prop_ro("is_capturing", [](const Encoder& self) { return self.core.is_capturing(); })
      .def(
          "take_capture", [](Encoder& self) { return self.core.take_capture(); }, "Ends the capture.")
      .def(
          "abandon_capture", [](Encoder& self) { self.core.abandon_capture(); },
          "Ends the capture and drops its nodes.")
      .def(
          "set_pending_buffer_ranges",
          [](Encoder& self, nb::handle reads, nb::handle writes) {
            std::vector<AddressRange> read_ranges = ranges_from(reads, "reads");
            self.core.set_pending_buffer_ranges(std::move(read_ranges), ranges_from(writes, "writes"));
          },
          "reads"_a.none(), "writes"_a.none(),
          nb::sig("def set_pending_buffer_ranges(self, reads: Sequence[Buffer | tuple[int, int]], "
                  "writes: Sequence[Buffer | tuple[int, int]]) -> None"),
          "Gives the next launch these ranges (buffers, or addresses (begin, end)) instead of the derived "
          "ones.")
      .def(
          "label",
          [](nb::handle self, nb::handle name) {
            return new Label{nb::borrow(self), text_from(name, "CommandEncoder.label", "name")};
          },
          "name"_a.none(), nb::rv_policy::take_ownership, nb::sig("def label(self, name: str) -> Label"),
          "A scope that names the launches in it; labels nest.")
      .def(
          "wait_for",
          [](Encoder& self, nb::handle ticket) {
            self.core.wait_for(object_from<Ticket>(ticket, "CommandEncoder.wait_for", "ticket", "a Ticket"));
          },
          "ticket"_a.none(), nb::sig("def wait_for(self, ticket: Ticket) -> None"),
          "The submission starts only when `ticket` (of any device) is done, and fails with its error.");
}

void bind_commit(nb::class_<Encoder>& encoder) {
  encoder
      .def("commit", &commit, "timeout"_a = nb::none(),
           nb::sig("def commit(self, timeout: float | None = None) -> Ticket"),
           "Hands the recorded work to the device and closes the encoder.\n\n"
           "timeout: seconds that the work may run before it fails with CommandBufferError code 'timeout'.")
      .def(
          "commit_and_wait",
          [](Encoder& self, nb::handle timeout) { wait_for_ticket(commit(self, timeout), std::nullopt); },
          "timeout"_a = nb::none(),
          nb::sig("def commit_and_wait(self, timeout: float | None = None) -> None"),
          "commit(), then wait for the work and raise its error.")
      .def(
          "discard", [](Encoder& self) { self.core.discard(); },
          "Drops what was recorded and closes the encoder.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> CommandEncoder"))
      .def(
          "__exit__",
          [](Encoder& self, nb::handle type, nb::handle, nb::handle) { return leave_encoder(self, type); },
          "exception_type"_a.none(), "exception"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, exception_type: object, exception: object, traceback: object) -> "
                  "typing.Literal[False]"),
          "Commits; discards where the block raised.")
      .def_prop_ro(
          "ticket", [](const Encoder& self) { return self.ticket; }, "The ticket of commit(); None before.")
      .def_prop_ro("is_open", [](const Encoder& self) { return self.core.is_open(); })
      .def_prop_ro(
          "launches", [](const Encoder& self) { return self.core.counters().launches; },
          "Launches recorded so far.")
      .def_prop_ro(
          "barriers", [](const Encoder& self) { return self.core.counters().barriers; },
          "Barriers recorded so far, automatic ones included.")
      .def_prop_ro(
          "device", [](const Encoder& self) { return self.core.device(); },
          nb::sig("def device(self) -> Device"))
      .def("__repr__", &encoder_repr);
}

}  // namespace

void bind_encoder(nb::module_& module) {
  bind_label(module);
  bind_capture(module);
  nb::class_<Encoder> encoder(
      module, "CommandEncoder", nb::is_final(), nb::type_slots(made_by_runtime),
      "Records the launches of one submission. For one thread at a time: two threads inside "
      "one encoder at once raise. As a context manager it commits at the end of the block.");
  bind_dispatch(encoder);
  bind_recording(encoder);
  bind_commit(encoder);
}

}  // namespace metalane::python
