// The C++ compiler's own account of the parameter structs: one of the three witnesses that tests compare.
#include <nanobind/stl/map.h>

#include <cstddef>
#include <map>
#include <type_traits>

#include "bindings/struct_type.h"

namespace metalane::python {

namespace {

template <typename T>
constexpr ScalarType scalar_of_type() {
  if constexpr (std::is_same_v<T, float>) return ScalarType::float32;
  if constexpr (std::is_same_v<T, std::uint8_t>) return ScalarType::uint8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return ScalarType::uint16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return ScalarType::uint32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return ScalarType::uint64;
  if constexpr (std::is_same_v<T, std::int32_t>) return ScalarType::int32;
  return ScalarType::opaque;
}

template <typename Member>
StructField field_of(const char* name, std::size_t offset) {
  using Element = std::remove_all_extents_t<Member>;
  static_assert(scalar_of_type<Element>() != ScalarType::opaque, "name the element's type above");
  StructField field;
  field.name = name;
  field.type.scalar = scalar_of_type<Element>();
  field.type.name = scalar_name(field.type.scalar);
  field.type.size = sizeof(Element);
  field.type.alignment = alignof(Element);
  field.count = std::is_array_v<Member> ? sizeof(Member) / sizeof(Element) : 0;
  field.offset = offset;
  field.size = sizeof(Member);
  return field;
}

template <typename Struct>
StructLayout layout_of(const char* name, std::vector<StructField> fields) {
  StructLayout layout;
  layout.name = name;
  layout.size = sizeof(Struct);
  layout.alignment = alignof(Struct);
  layout.fields = std::move(fields);
  return layout;
}

#define METALANE_FIELD(Struct, member) field_of<decltype(Struct::member)>(#member, offsetof(Struct, member))

std::map<std::string, StructLayout> all_layouts() {
  using Selector = DFlash2SelectorParams;
  using VerifyRows = DFlash2VerifyRowsParams;
  using Embedding = EmbeddingGgmlParams;
  using Matmul = GgmlQuantizedMatmulParams;
  using MatmulId = GgmlQuantizedMatmulIdParams;
  using Rows = SpeculativeRowsParams;
  using Scatter = ScatterRowsParams;
  using Verify = SpeculativeVerifyParams;
  return {
      {"EmbeddingGgmlParams",
       layout_of<Embedding>("EmbeddingGgmlParams",
                            {METALANE_FIELD(Embedding, vocab_size), METALANE_FIELD(Embedding, embed_dim),
                             METALANE_FIELD(Embedding, n_tokens), METALANE_FIELD(Embedding, ggml_type)})},
      {"GgmlQuantizedMatmulParams",
       layout_of<Matmul>("GgmlQuantizedMatmulParams",
                         {METALANE_FIELD(Matmul, m), METALANE_FIELD(Matmul, n), METALANE_FIELD(Matmul, k),
                          METALANE_FIELD(Matmul, ggml_type)})},
      {"GgmlQuantizedMatmulIdParams",
       layout_of<MatmulId>(
           "GgmlQuantizedMatmulIdParams",
           {METALANE_FIELD(MatmulId, n_tokens), METALANE_FIELD(MatmulId, top_k), METALANE_FIELD(MatmulId, n),
            METALANE_FIELD(MatmulId, k), METALANE_FIELD(MatmulId, n_experts),
            METALANE_FIELD(MatmulId, padding), METALANE_FIELD(MatmulId, expert_stride),
            METALANE_FIELD(MatmulId, ggml_type), METALANE_FIELD(MatmulId, padding_behind)})},
      {"SpeculativeRowsParams",
       layout_of<Rows>("SpeculativeRowsParams",
                       {METALANE_FIELD(Rows, lanes), METALANE_FIELD(Rows, rows_per_lane),
                        METALANE_FIELD(Rows, n_grids), METALANE_FIELD(Rows, padding),
                        METALANE_FIELD(Rows, weight_tiles), METALANE_FIELD(Rows, input_rows)})},
      {"ScatterRowsParams", layout_of<Scatter>("ScatterRowsParams", {METALANE_FIELD(Scatter, row_length),
                                                                     METALANE_FIELD(Scatter, rows)})},
      {"DFlash2SelectorParams",
       layout_of<Selector>("DFlash2SelectorParams",
                           {METALANE_FIELD(Selector, anchor), METALANE_FIELD(Selector, temperature),
                            METALANE_FIELD(Selector, lanes), METALANE_FIELD(Selector, rows_per_lane),
                            METALANE_FIELD(Selector, vocabulary), METALANE_FIELD(Selector, sampling_mask)})},
      {"DFlash2VerifyRowsParams",
       layout_of<VerifyRows>("DFlash2VerifyRowsParams",
                             {METALANE_FIELD(VerifyRows, slope), METALANE_FIELD(VerifyRows, intercept),
                              METALANE_FIELD(VerifyRows, cost), METALANE_FIELD(VerifyRows, cost_64),
                              METALANE_FIELD(VerifyRows, lanes), METALANE_FIELD(VerifyRows, rows_per_lane),
                              METALANE_FIELD(VerifyRows, every_row), METALANE_FIELD(VerifyRows, maximum)})},
      {"SpeculativeVerifyParams",
       layout_of<Verify>("SpeculativeVerifyParams",
                         {METALANE_FIELD(Verify, lanes), METALANE_FIELD(Verify, rows_per_lane),
                          METALANE_FIELD(Verify, vocabulary), METALANE_FIELD(Verify, candidates)})},
  };
}

#undef METALANE_FIELD

}  // namespace

const std::map<std::string, StructLayout>& cpp_layouts() {
  static const std::map<std::string, StructLayout> layouts = all_layouts();
  return layouts;
}

void bind_layouts(nb::module_& module) {
  module.def("cpp_layouts", &cpp_layouts,
             "The parameter structs of the built-in kernels as the C++ compiler laid them out, by name.");
}

}  // namespace metalane::python
