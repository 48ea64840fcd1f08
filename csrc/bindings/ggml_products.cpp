// The GGML operators: embedding gather, dense and expert-routed products, and the policy that routes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "bindings/ggml_type_argument.h"
#include "bindings/params_argument.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

GgmlAlgorithm algorithm_from(nb::handle value, const char* op) {
  constexpr std::array all = {GgmlAlgorithm::automatic, GgmlAlgorithm::mv, GgmlAlgorithm::mm,
                              GgmlAlgorithm::mm_simd};
  if (!nb::isinstance<nb::str>(value)) {
    throw DTypeError(op, "algorithm", "a str", repr_of(value) + " (" + type_name_of(value) + ")");
  }
  const std::string name = text_from(value, op, "algorithm");
  for (const GgmlAlgorithm algorithm : all) {
    if (name_of(algorithm) == name) return algorithm;
  }
  throw ArgumentError(op, "algorithm", "auto, mv, mm or mm_simd", repr_of(value));
}

std::uint32_t u32_from(nb::handle value, const char* op, const char* argument) {
  const std::uint64_t number = u64_from(value, op, argument);
  if (number > 0xffffffffu) throw ArgumentError(op, argument, "below 2^32", std::to_string(number));
  return static_cast<std::uint32_t>(number);
}

const GgmlPolicy& policy_from(nb::handle value, const char* op) {
  if (value.is_none()) return default_ggml_policy();
  return object_from<GgmlPolicy>(value, op, "policy", "a GgmlPolicy or None");
}

// The arguments of an operator, each by its class and name.
struct Operands {
  const char* op;
  const Buffer& buffer(nb::handle value, const char* argument) const {
    return object_from<Buffer>(value, op, argument, "a Buffer");
  }
  CommandEncoder& encoder(nb::handle value) const {
    return object_from<Encoder>(value, op, "encoder", "a CommandEncoder").core;
  }
  const IdMmScratch& scratch(nb::handle value) const {
    return object_from<IdMmScratch>(value, op, "scratch", "an IdMmScratch");
  }
};

void gather(nb::handle encoder, nb::handle weight, nb::handle ids, nb::handle output, nb::handle params) {
  constexpr Operands given{"embedding_gather_ggml"};
  embedding_gather_ggml(given.encoder(encoder), given.buffer(weight, "weight"), given.buffer(ids, "ids"),
                        given.buffer(output, "output"),
                        params_from<EmbeddingGgmlParams>(params, given.op, "EmbeddingGgmlParams"));
}

void multiply(nb::handle encoder, nb::handle input, nb::handle weight, nb::handle output, nb::handle params,
              nb::handle algorithm, nb::handle policy, nb::handle grid) {
  constexpr Operands given{"quantized_matmul_ggml"};
  quantized_matmul_ggml(given.encoder(encoder), given.buffer(input, "input"), given.buffer(weight, "weight"),
                        given.buffer(output, "output"),
                        params_from<GgmlQuantizedMatmulParams>(params, given.op, "GgmlQuantizedMatmulParams"),
                        algorithm_from(algorithm, given.op), policy_from(policy, given.op),
                        grid.is_none() ? Buffer() : given.buffer(grid, "grid"));
}

void multiply_batched(nb::handle encoder, nb::handle input, nb::handle weight, nb::handle output,
                      nb::handle batches, nb::handle m, nb::handle n, nb::handle k, nb::handle ggml_type) {
  constexpr Operands given{"quantized_matmul_batched_mv"};
  quantized_matmul_batched_mv(
      given.encoder(encoder), given.buffer(input, "input"), given.buffer(weight, "weight"),
      given.buffer(output, "output"), u32_from(batches, given.op, "batches"), u32_from(m, given.op, "m"),
      u32_from(n, given.op, "n"), u32_from(k, given.op, "k"), ggml_type_from(ggml_type, given.op));
}

const GgmlQuantizedMatmulIdParams& id_params_from(nb::handle params, const char* op) {
  return params_from<GgmlQuantizedMatmulIdParams>(params, op, "GgmlQuantizedMatmulIdParams");
}

void multiply_routed(nb::handle encoder, nb::handle input, nb::handle weight, nb::handle ids,
                     nb::handle output, nb::handle params, nb::handle algorithm, nb::handle policy) {
  constexpr Operands given{"quantized_matmul_id_ggml"};
  quantized_matmul_id_ggml(given.encoder(encoder), given.buffer(input, "input"),
                           given.buffer(weight, "weight"), given.buffer(ids, "ids"),
                           given.buffer(output, "output"), id_params_from(params, given.op),
                           algorithm_from(algorithm, given.op), policy_from(policy, given.op));
}

void multiply_pooled(nb::handle encoder, nb::handle input, nb::handle weight, nb::handle ids,
                     nb::handle output, nb::handle scratch, nb::handle params) {
  constexpr Operands given{"quantized_matmul_id_ggml_pooled"};
  quantized_matmul_id_ggml_pooled(given.encoder(encoder), given.buffer(input, "input"),
                                  given.buffer(weight, "weight"), given.buffer(ids, "ids"),
                                  given.buffer(output, "output"), given.scratch(scratch),
                                  id_params_from(params, given.op));
}

void multiply_pair(nb::handle encoder, nb::handle input, nb::handle weight_a, nb::handle weight_b,
                   nb::handle ids, nb::handle output_a, nb::handle output_b, nb::handle scratch,
                   nb::handle params) {
  constexpr Operands given{"quantized_matmul_id_ggml_pooled_pair"};
  quantized_matmul_id_ggml_pooled_pair(
      given.encoder(encoder), given.buffer(input, "input"), given.buffer(weight_a, "weight_a"),
      given.buffer(weight_b, "weight_b"), given.buffer(ids, "ids"), given.buffer(output_a, "output_a"),
      given.buffer(output_b, "output_b"), given.scratch(scratch), id_params_from(params, given.op));
}

void multiply_slotted(nb::handle encoder, nb::handle input, nb::handle weight, nb::handle ids,
                      nb::handle output, nb::handle scratch, nb::handle params) {
  constexpr Operands given{"quantized_matmul_id_ggml_pooled_slotted"};
  quantized_matmul_id_ggml_pooled_slotted(given.encoder(encoder), given.buffer(input, "input"),
                                          given.buffer(weight, "weight"), given.buffer(ids, "ids"),
                                          given.buffer(output, "output"), given.scratch(scratch),
                                          id_params_from(params, given.op));
}

GgmlRule make_rule(nb::handle algorithm, bool routed, nb::handle ggml_type, nb::handle first_rows,
                   nb::handle last_rows, nb::handle top_k) {
  constexpr const char* op = "GgmlRule";
  GgmlRule rule;
  rule.algorithm = algorithm_from(algorithm, op);
  rule.routed = routed;
  if (!ggml_type.is_none()) rule.ggml_type = ggml_type_from(ggml_type, op);
  rule.first_rows = u32_from(first_rows, op, "first_rows");
  if (!last_rows.is_none()) rule.last_rows = u32_from(last_rows, op, "last_rows");
  constexpr std::uint64_t most = 256;
  const SequenceItems items = sequence_items(top_k, most);
  if (items.length < 0) {
    throw DTypeError(op, "top_k", "a sequence of ints", repr_of(top_k) + " (" + type_name_of(top_k) + ")");
  }
  if (static_cast<std::uint64_t>(items.length) > most) {
    throw ArgumentError(op, "top_k", "at most 256 numbers", std::to_string(items.length));
  }
  for (Py_ssize_t i = 0; i < items.length; ++i) {
    rule.top_k.push_back(u32_from(PyTuple_GetItem(items.tuple.ptr(), i), op, "top_k"));
  }
  return rule;
}

std::string rule_repr(const GgmlRule& rule) {
  std::string text = "GgmlRule('" + std::string(name_of(rule.algorithm)) + "'";
  if (rule.routed) text += ", routed=True";
  if (rule.ggml_type) text += ", ggml_type='" + std::string(find_ggml_type(*rule.ggml_type)->name) + "'";
  if (rule.first_rows != 1) text += ", first_rows=" + std::to_string(rule.first_rows);
  if (rule.last_rows != 0xffffffffu) text += ", last_rows=" + std::to_string(rule.last_rows);
  if (!rule.top_k.empty()) {
    text += ", top_k=(";
    for (const std::uint32_t value : rule.top_k) text += std::to_string(value) + ", ";
    text += ")";
  }
  return text + ")";
}

std::string plan_repr(const GgmlPlan& plan) {
  return "GgmlPlan(kernel='" + plan.kernel + "', algorithm='" + std::string(name_of(plan.algorithm)) +
         "', weight_rows=" + std::to_string(plan.weight_rows) +
         ", input_rows=" + std::to_string(plan.input_rows) +
         ", scratch_bytes=" + std::to_string(plan.scratch_bytes) + ")";
}

GgmlPlan plan(const GgmlPolicy& policy, nb::handle params, nb::handle algorithm) {
  constexpr const char* op = "GgmlPolicy.plan";
  const GgmlAlgorithm chosen = algorithm_from(algorithm, op);
  const StructView view = struct_view(params);
  if (view.spec != nullptr && view.spec->name == "GgmlQuantizedMatmulIdParams") {
    return policy.plan(id_params_from(params, op), chosen);
  }
  return policy.plan(params_from<GgmlQuantizedMatmulParams>(params, op, "GgmlQuantizedMatmulParams"), chosen);
}

IdMmScratch alloc_scratch(nb::handle device, nb::handle n_experts, nb::handle n_tokens, nb::handle top_k) {
  constexpr const char* op = "IdMmScratch.alloc";
  const auto& on = object_from<Device>(device, op, "device", "a Device");
  const std::uint64_t experts = u64_from(n_experts, op, "n_experts");
  const std::uint64_t tokens = u64_from(n_tokens, op, "n_tokens");
  const std::uint64_t slots = u64_from(top_k, op, "top_k");
  Unlocked unlocked;
  return IdMmScratch::alloc(on, experts, tokens, slots);
}

template <typename T>
bool equal(const T& self, nb::handle other) {
  return nb::isinstance<T>(other) && nb::inst_ready(other) && self == *nb::inst_ptr<T>(other);
}

void bind_policy(nb::module_& module) {
  nb::class_<GgmlRule>(
      module, "GgmlRule", nb::is_final(),
      "Products of one kind take one algorithm ('mv', 'mm' or 'mm_simd'; routed products have no "
      "'mm'): dense ones with m, or expert-routed ones (`routed`) with n_tokens, from `first_rows` to "
      "`last_rows`, of `ggml_type` (None: all) and, where routed, with top_k among those (empty: any).")
      .def(
          "__init__",
          [](GgmlRule* self, nb::handle algorithm, bool routed, nb::handle ggml_type, nb::handle first_rows,
             nb::handle last_rows, nb::handle top_k) {
            new (self) GgmlRule(make_rule(algorithm, routed, ggml_type, first_rows, last_rows, top_k));
          },
          "algorithm"_a.none(), nb::kw_only(), "routed"_a = false, "ggml_type"_a.none() = nb::none(),
          "first_rows"_a.none() = 1, "last_rows"_a.none() = nb::none(), "top_k"_a.none() = nb::tuple(),
          nb::sig("def __init__(self, algorithm: str, *, routed: bool = False, ggml_type: GgmlType | int | "
                  "str | None "
                  "= None, first_rows: int = 1, last_rows: int | None = None, top_k: "
                  "collections.abc.Sequence[int] = ()) -> None"))
      .def_prop_ro("algorithm", [](const GgmlRule& self) { return std::string(name_of(self.algorithm)); })
      .def_ro("routed", &GgmlRule::routed)
      .def_ro("ggml_type", &GgmlRule::ggml_type)
      .def_ro("first_rows", &GgmlRule::first_rows)
      .def_ro("last_rows", &GgmlRule::last_rows)
      .def_ro("top_k", &GgmlRule::top_k)
      .def("__eq__", &equal<GgmlRule>, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", &rule_repr);
  nb::class_<GgmlPlan>(
      module, "GgmlPlan", nb::is_final(), nb::type_slots(made_by_runtime),
      "What a product would run: `kernel`, its `algorithm`, the `weight_rows` that one threadgroup "
      "takes, the `input_rows` for which it reads them once, and the `scratch_bytes` of device memory "
      "that it needs beside its arguments.")
      .def_ro("kernel", &GgmlPlan::kernel)
      .def_prop_ro("algorithm", [](const GgmlPlan& self) { return std::string(name_of(self.algorithm)); })
      .def_ro("weight_rows", &GgmlPlan::weight_rows)
      .def_ro("input_rows", &GgmlPlan::input_rows)
      .def_ro("scratch_bytes", &GgmlPlan::scratch_bytes)
      .def("__eq__", &equal<GgmlPlan>, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", &plan_repr);
  nb::class_<GgmlPolicy>(
      module, "GgmlPolicy", nb::is_final(),
      "Which kernel multiplies with GGML weights: the first of `rules` that fits a product decides, "
      "'mv' where none does. Without rules it is metalane's own, which keeps mat-vec's accuracy for m <= "
      "8, and for routed products with n_tokens <= 32 or top_k other than 1, 6 and 8.")
      .def(
          "__init__",
          [](GgmlPolicy* self, std::optional<std::vector<GgmlRule>> rules) {
            if (rules) {
              new (self) GgmlPolicy(std::move(*rules));
            } else {
              new (self) GgmlPolicy();
            }
          },
          "rules"_a.none() = nb::none(),
          nb::sig("def __init__(self, rules: collections.abc.Sequence[GgmlRule] | None = None) -> None"))
      .def_prop_ro("rules", [](const GgmlPolicy& self) { return self.rules(); })
      .def("plan", &plan, "params"_a.none(), "algorithm"_a.none() = "auto",
           nb::sig("def plan(self, params: typing.Any, algorithm: str = 'auto') -> GgmlPlan"),
           "What a product with these GgmlQuantizedMatmulParams or GgmlQuantizedMatmulIdParams would run.")
      .def("__repr__",
           [](const GgmlPolicy& self) { return "GgmlPolicy(" + repr_of(nb::cast(self.rules())) + ")"; });
}

void bind_scratch(nb::module_& module) {
  nb::class_<IdMmScratch>(
      module, "IdMmScratch", nb::is_final(), nb::type_slots(made_by_runtime),
      "Memory in which expert-routed mat-mat sorts its routes; serves any number of calls.")
      .def_static(
          "alloc", &alloc_scratch, "device"_a.none(), "n_experts"_a.none(), "n_tokens"_a.none(),
          "top_k"_a.none() = 8,
          nb::sig("def alloc(device: Device, n_experts: int, n_tokens: int, top_k: int = 8) -> IdMmScratch"),
          "Room for n_tokens * top_k routes to n_experts experts, however they are distributed.")
      .def_prop_ro("n_experts", &IdMmScratch::n_experts)
      .def_prop_ro("routes", &IdMmScratch::routes)
      .def_prop_ro("nbytes", [](const IdMmScratch& self) { return self.schedule().nbytes(); })
      .def_prop_ro(
          "status",
          [](const IdMmScratch& self) {
            wait_for_buffer(self.schedule());
            return self.status();
          },
          nb::sig("def status(self) -> str"),
          "Of the last call that used it (waits for it): 'done', or how many ids were out of range.")
      .def("__repr__", [](const IdMmScratch& self) {
        return "IdMmScratch(n_experts=" + std::to_string(self.n_experts()) +
               ", routes=" + std::to_string(self.routes()) + ")";
      });
}

}  // namespace

void bind_ggml_products(nb::module_& module) {
  bind_policy(module);
  bind_scratch(module);
  module.def(
      "embedding_gather_ggml", &gather, "encoder"_a.none(), "weight"_a.none(), "ids"_a.none(),
      "output"_a.none(), "params"_a.none(),
      nb::sig(
          "def embedding_gather_ggml(encoder: CommandEncoder, weight: Buffer, ids: Buffer, output: Buffer, "
          "params: typing.Any) -> None"),
      "Records output[t] = weight[ids[t]]; see metalane.ops.ggml.");
  module.def(
      "quantized_matmul_ggml", &multiply, "encoder"_a.none(), "input"_a.none(), "weight"_a.none(),
      "output"_a.none(), "params"_a.none(), "algorithm"_a.none() = "auto", "policy"_a.none() = nb::none(),
      "grid"_a.none() = nb::none(),
      nb::sig(
          "def quantized_matmul_ggml(encoder: CommandEncoder, input: Buffer, weight: Buffer, output: Buffer, "
          "params: typing.Any, algorithm: str = 'auto', policy: GgmlPolicy | None = None, grid: Buffer | "
          "None = "
          "None) -> None"),
      "Records a dense product with GGML weights; see metalane.ops.ggml.");
  module.def(
      "quantized_matmul_batched_mv", &multiply_batched, "encoder"_a.none(), "input"_a.none(),
      "weight"_a.none(), "output"_a.none(), "batches"_a.none(), "m"_a.none(), "n"_a.none(), "k"_a.none(),
      "ggml_type"_a.none(),
      nb::sig(
          "def quantized_matmul_batched_mv(encoder: CommandEncoder, input: Buffer, weight: Buffer, output: "
          "Buffer, batches: int, m: int, n: int, k: int, ggml_type: GgmlType | int | str) -> None"),
      "Records products one behind another; see metalane.ops.ggml.");
  module.def(
      "quantized_matmul_id_ggml", &multiply_routed, "encoder"_a.none(), "input"_a.none(), "weight"_a.none(),
      "ids"_a.none(), "output"_a.none(), "params"_a.none(), "algorithm"_a.none() = "auto",
      "policy"_a.none() = nb::none(),
      nb::sig(
          "def quantized_matmul_id_ggml(encoder: CommandEncoder, input: Buffer, weight: Buffer, ids: Buffer, "
          "output: Buffer, params: typing.Any, algorithm: str = 'auto', policy: GgmlPolicy | None = None) -> "
          "None"),
      "Records an expert-routed product; see metalane.ops.ggml.");
  module.def(
      "quantized_matmul_id_ggml_pooled", &multiply_pooled, "encoder"_a.none(), "input"_a.none(),
      "weight"_a.none(), "ids"_a.none(), "output"_a.none(), "scratch"_a.none(), "params"_a.none(),
      nb::sig(
          "def quantized_matmul_id_ggml_pooled(encoder: CommandEncoder, input: Buffer, weight: Buffer, ids: "
          "Buffer, output: Buffer, scratch: IdMmScratch, params: typing.Any) -> None"),
      "The same by mat-mat with the caller's scratch; see metalane.ops.ggml.");
  module.def(
      "quantized_matmul_id_ggml_pooled_pair", &multiply_pair, "encoder"_a.none(), "input"_a.none(),
      "weight_a"_a.none(), "weight_b"_a.none(), "ids"_a.none(), "output_a"_a.none(), "output_b"_a.none(),
      "scratch"_a.none(), "params"_a.none(),
      nb::sig(
          "def quantized_matmul_id_ggml_pooled_pair(encoder: CommandEncoder, input: Buffer, weight_a: "
          "Buffer, "
          "weight_b: Buffer, ids: Buffer, output_a: Buffer, output_b: Buffer, scratch: IdMmScratch, params: "
          "typing.Any) -> None"),
      "Two weights along one schedule; see metalane.ops.ggml.");
  module.def(
      "quantized_matmul_id_ggml_pooled_slotted", &multiply_slotted, "encoder"_a.none(), "input"_a.none(),
      "weight"_a.none(), "ids"_a.none(), "output"_a.none(), "scratch"_a.none(), "params"_a.none(),
      nb::sig("def quantized_matmul_id_ggml_pooled_slotted(encoder: CommandEncoder, input: Buffer, weight: "
              "Buffer, ids: Buffer, output: Buffer, scratch: IdMmScratch, params: typing.Any) -> None"),
      "With a row of inputs a route; see metalane.ops.ggml.");
}

}  // namespace metalane::python
