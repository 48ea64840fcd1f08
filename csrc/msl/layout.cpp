// Sizes of the language's own types, and the layout of records.
#include <algorithm>
#include <array>

#include "msl/types.h"

namespace metalane::msl {
namespace {

constexpr int max_depth = 64;
constexpr std::uint64_t max_bytes = std::uint64_t(1) << 40;

struct ScalarName {
  std::string_view name;
  std::string_view canonical;
  ScalarType scalar;
  std::uint32_t size;
};

constexpr ScalarName scalar_names[] = {
    {"bool", "bool", ScalarType::boolean, 1},
    {"char", "char", ScalarType::int8, 1},
    {"int8_t", "char", ScalarType::int8, 1},
    {"uchar", "uchar", ScalarType::uint8, 1},
    {"uint8_t", "uchar", ScalarType::uint8, 1},
    {"short", "short", ScalarType::int16, 2},
    {"int16_t", "short", ScalarType::int16, 2},
    {"ushort", "ushort", ScalarType::uint16, 2},
    {"uint16_t", "ushort", ScalarType::uint16, 2},
    {"int", "int", ScalarType::int32, 4},
    {"int32_t", "int", ScalarType::int32, 4},
    {"uint", "uint", ScalarType::uint32, 4},
    {"uint32_t", "uint", ScalarType::uint32, 4},
    {"long", "long", ScalarType::int64, 8},
    {"int64_t", "long", ScalarType::int64, 8},
    {"ulong", "ulong", ScalarType::uint64, 8},
    {"uint64_t", "ulong", ScalarType::uint64, 8},
    {"size_t", "ulong", ScalarType::uint64, 8},
    {"ptrdiff_t", "long", ScalarType::int64, 8},
    {"intptr_t", "long", ScalarType::int64, 8},
    {"uintptr_t", "ulong", ScalarType::uint64, 8},
    {"half", "half", ScalarType::float16, 2},
    {"bfloat", "bfloat", ScalarType::bfloat16, 2},
    {"float", "float", ScalarType::float32, 4},
    {"atomic_int", "atomic_int", ScalarType::int32, 4},
    {"atomic_uint", "atomic_uint", ScalarType::uint32, 4},
    {"atomic_bool", "atomic_bool", ScalarType::boolean, 1},
    {"atomic_float", "atomic_float", ScalarType::float32, 4},
    {"atomic_ulong", "atomic_ulong", ScalarType::uint64, 8},
};

const ScalarName* find_scalar(std::string_view name) {
  for (const ScalarName& scalar : scalar_names) {
    if (scalar.name == name) return &scalar;
  }
  return nullptr;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

bool is_component_count(char c) { return c >= '2' && c <= '4'; }

}  // namespace

std::optional<TypeInfo> builtin_type(std::string_view name) {
  // Names of <simd/simd.h>: simd_float4, vector_float4, matrix_float4x4.
  for (const std::string_view prefix : {"simd_", "vector_", "matrix_"}) {
    if (!name.starts_with(prefix)) continue;
    auto type = builtin_type(name.substr(prefix.size()));
    const bool is_named = type && (prefix == "matrix_" ? type->columns > 1 : type->components > 1) &&
                          !name.substr(prefix.size()).starts_with("packed_");
    return is_named && (prefix != "vector_" || type->columns == 1) ? type : std::nullopt;
  }
  TypeInfo type;
  const bool packed = name.starts_with("packed_");
  const std::string_view plain = packed ? name.substr(7) : name;
  if (const ScalarName* scalar = packed ? nullptr : find_scalar(plain)) {
    type.name = scalar->canonical;
    type.scalar = scalar->scalar;
    type.size = type.alignment = scalar->size;
    return type;
  }
  const std::size_t size = plain.size();
  std::string_view element;
  if (size > 3 && plain[size - 2] == 'x' && is_component_count(plain[size - 1]) &&
      is_component_count(plain[size - 3])) {
    element = plain.substr(0, size - 3);
    type.columns = static_cast<std::uint32_t>(plain[size - 3] - '0');
  } else if (size > 1 && is_component_count(plain[size - 1])) {
    element = plain.substr(0, size - 1);
  }
  const ScalarName* scalar = element.empty() ? nullptr : find_scalar(element);
  if (!scalar || scalar->name != scalar->canonical || scalar->name.starts_with("atomic_"))
    return std::nullopt;
  type.scalar = scalar->scalar;
  type.components = static_cast<std::uint32_t>(plain[size - 1] - '0');
  type.name = name;
  const bool floating = type.scalar == ScalarType::float32 || type.scalar == ScalarType::float16;
  if (type.columns > 1 && (packed || !floating)) return std::nullopt;
  // A vector of three takes the room of four, unless packed (MSL specification, 2.2 and 2.3).
  const std::uint32_t room = type.components == 3 && !packed ? 4 : type.components;
  type.alignment = packed ? scalar->size : scalar->size * room;
  type.size = std::uint64_t(scalar->size) * room * type.columns;
  return type;
}

// Puts a bit-field behind the bits that end at `end`: it never straddles a unit of its type.
void TypeTable::place_bits(StructLayout& layout, StructField field, std::uint64_t& end, bool packed) const {
  const std::uint64_t unit = 8 * field.type.size;
  std::uint64_t begin = layout.is_union ? 0 : end;
  const bool straddles = begin / unit != (begin + std::max(field.bit_width, 1u) - 1) / unit;
  if (field.bit_width == 0 || (straddles && !packed)) begin = round_up(begin, unit);
  end = begin + field.bit_width;
  layout.size = std::max(layout.size, round_up(end, 8) / 8);
  if (field.name.empty()) return;
  field.size = field.type.size;
  field.offset = begin / unit * field.type.size;
  field.bit_offset = static_cast<std::uint32_t>(begin % unit);
  layout.alignment = std::max(layout.alignment, packed ? 1 : field.type.alignment);
  layout.fields.push_back(std::move(field));
}

void TypeTable::place(StructLayout& layout, StructField field, std::uint64_t alignment) const {
  field.size = field.type.size * (field.count == 0 ? 1 : field.count);
  field.offset = layout.is_union ? 0 : round_up(layout.size, alignment);
  layout.size = std::max(layout.size, field.offset + field.size);
  layout.alignment = std::max(layout.alignment, alignment);
  layout.fields.push_back(std::move(field));
}

// The largest alignas(...) in `range`; 1 where there is none.
std::uint64_t TypeTable::alignas_of(Range range, const Bindings& bindings, int depth) const {
  std::uint64_t alignment = 1;
  for (Index i = range.begin; i < range.end; ++i) {
    if (!unit_.is_at(i, "alignas") && !unit_.is_at(i, "aligned")) continue;
    if (!unit_.is_at(i + 1, "(")) continue;
    const TokenList inside = tokens({i + 2, unit_.match(i + 1)});
    auto value = evaluate(inside, bindings, depth);
    if (!value) value = static_cast<std::int64_t>(resolve_counted(inside, bindings, depth).type.alignment);
    if (*value > 0 && *value <= 4096) alignment = std::max(alignment, static_cast<std::uint64_t>(*value));
  }
  return alignment;
}

std::shared_ptr<const StructLayout> TypeTable::record_layout(Index index, const Bindings& bindings,
                                                             int depth) const {
  const auto known = layouts_.find(index);
  if (known != layouts_.end()) return known->second;
  if (depth > max_depth) return nullptr;
  const Item& item = unit_.items()[index];
  auto layout = std::make_shared<StructLayout>();
  const bool is_alias = item.kind == ItemKind::alias;
  if (!item.names.empty()) layout->name = is_alias ? item.names.back() : item.names.front();
  const Range head = {item.tokens.begin, item.body.begin - 1};
  bool packed = false;
  for (Index i = head.begin; i < head.end; ++i) {
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      for (; i < behind; ++i) packed |= unit_.is_at(i, "packed") || unit_.is_at(i, "__packed__");
      --i;
      continue;
    }
    layout->is_union |= unit_.is_at(i, "union");
    if (!unit_.is_at(i, ":")) continue;
    if (!add_bases(*layout, {i + 1, head.end}, bindings, depth)) return nullptr;
    break;
  }
  for (Index i = item.body.end; i < item.tokens.end; ++i)
    packed |= unit_.is_at(i, "packed") || unit_.is_at(i, "__packed__");
  layout->alignment = std::max(layout->alignment, alignas_of(head, bindings, depth));
  if (!add_fields(*layout, item, bindings, packed, depth)) return nullptr;
  layout->size = std::max<std::uint64_t>(round_up(layout->size, layout->alignment), layout->alignment);
  return layout;
}

// Whether `item` is what the C++ ABI calls a POD, whose padding at the end a derived record leaves alone.
bool TypeTable::is_plain(const Item& item) const {
  for (Index i = item.tokens.begin; i < item.body.begin; ++i) {
    if (unit_.is_at(i, ":")) return false;
  }
  for (const Index index : item.children) {
    const Item& member = unit_.items()[index];
    const bool constructor = member.kind == ItemKind::function && !item.names.empty() &&
                             !member.names.empty() && member.names.front() == item.names.front();
    if (constructor || unit_.is_at(member.tokens.begin, "private") ||
        unit_.is_at(member.tokens.begin, "protected")) {
      return false;
    }
  }
  return true;
}

// The fields of base classes come first.
bool TypeTable::add_bases(StructLayout& layout, Range bases, const Bindings& bindings, int depth) const {
  for (Range base : unit_.split_commas(bases)) {
    while (unit_.is_at(base.begin, "public") || unit_.is_at(base.begin, "private") ||
           unit_.is_at(base.begin, "protected")) {
      ++base.begin;
    }
    const TypeInfo type = resolve_counted(tokens(base), bindings, depth + 1).type;
    if (!type.layout) return false;
    if (type.layout->fields.empty()) continue;  // takes no room
    const std::uint64_t begin = round_up(layout.size, type.alignment);
    std::uint64_t end = 0;
    for (StructField field : type.layout->fields) {
      end = std::max(end, field.offset + field.size);
      field.offset += begin;
      layout.fields.push_back(std::move(field));
    }
    const auto found = named_.find(type.layout->name);
    const bool plain = found != named_.end() && is_plain(unit_.items()[found->second.front()]);
    layout.size = begin + (plain ? type.size : end);
    layout.alignment = std::max(layout.alignment, type.alignment);
  }
  return true;
}

bool TypeTable::add_fields(StructLayout& layout, const Item& record, const Bindings& bindings, bool packed,
                           int depth) const {
  std::uint64_t bits_end = 0;
  bool behind_bits = false;
  for (const Index index : record.children) {
    const Item& member = unit_.items()[index];
    if (member.kind == ItemKind::record) {
      behind_bits = false;
      if (!add_record_member(layout, index, bindings, packed, depth)) return false;
      continue;
    }
    if (member.kind != ItemKind::variable) continue;
    bool is_static = false;
    for (Index i = member.tokens.begin; i < member.name_at; ++i) is_static |= unit_.is_at(i, "static");
    if (is_static) continue;
    for (const Declarator& declarator : read_declarators(unit_, member.tokens)) {
      if (!declarator.bit_field && declarator.name_at == no_index) return false;
      StructField field;
      if (declarator.name_at != no_index) field.name = unit_.at(declarator.name_at).text;
      Resolved resolved = resolve_counted(declarator.type, bindings, depth);
      if (!declarator.operators.empty()) {
        resolved.type = TypeInfo();
        resolved.type.name = "pointer";
        resolved.type.size = resolved.type.alignment = 8;
      }
      field.type = resolved.type;
      field.count = resolved.count;
      for (const Range& extent : declarator.extents) {
        const auto count = evaluate(tokens(extent), bindings, depth);
        if (!count || *count < 0 || static_cast<std::uint64_t>(*count) > max_bytes) return false;
        field.count = std::max<std::uint64_t>(field.count, 1) * static_cast<std::uint64_t>(*count);
        if (field.count > max_bytes) return false;
      }
      if (field.type.size == 0 || field.count > max_bytes / field.type.size) return false;
      if (!behind_bits) bits_end = 8 * layout.size;
      behind_bits = declarator.bit_field;
      if (declarator.bit_field) {
        const auto width = evaluate(tokens(declarator.bit_width), bindings, depth);
        const std::uint64_t most = 8 * field.type.size;
        if (!width || *width < 0 || static_cast<std::uint64_t>(*width) > most) return false;
        field.bit_width = static_cast<std::uint32_t>(*width);
        place_bits(layout, std::move(field), bits_end, packed);
        continue;
      }
      const std::uint64_t natural = packed ? 1 : field.type.alignment;
      place(layout, std::move(field), std::max(natural, alignas_of(member.tokens, bindings, depth)));
      if (layout.size > max_bytes) return false;
    }
  }
  return true;
}

// "struct {...} a;" is a field, "union {...};" puts its members into the enclosing record.
bool TypeTable::add_record_member(StructLayout& layout, Index index, const Bindings& bindings, bool packed,
                                  int depth) const {
  const Item& member = unit_.items()[index];
  const auto inner = record_layout(index, bindings, depth + 1);
  const std::uint64_t alignment = packed ? 1 : inner ? inner->alignment : 1;
  const bool named_type = member.name_at != no_index && member.name_at < member.body.begin;
  const bool no_declarator = member.body.end + 2 >= member.tokens.end;
  if (no_declarator && named_type) return true;
  if (!inner) return false;
  if (no_declarator) {
    const std::uint64_t base = layout.is_union ? 0 : round_up(layout.size, alignment);
    for (StructField field : inner->fields) {
      field.offset += base;
      layout.fields.push_back(std::move(field));
    }
    layout.size = std::max(layout.size, base + inner->size);
    layout.alignment = std::max(layout.alignment, alignment);
    return true;
  }
  for (const std::string_view name : member.names) {
    if (named_type && name == member.names.front()) continue;
    StructField field;
    field.name = name;
    field.type.name = inner->name;
    field.type.scalar = ScalarType::structure;
    field.type.layout = inner;
    field.type.size = inner->size;
    field.type.alignment = inner->alignment;
    for (Index i = member.body.end + 1; i < member.tokens.end; ++i) {
      if (!unit_.is_at(i, name) || !unit_.is_at(i + 1, "[")) continue;
      for (Index k = i + 1; unit_.is_at(k, "["); k = unit_.match(k) + 1) {
        const auto count = evaluate(tokens({k + 1, unit_.match(k)}), bindings, depth);
        if (!count || *count < 0 || static_cast<std::uint64_t>(*count) > max_bytes) return false;
        field.count = std::max<std::uint64_t>(field.count, 1) * static_cast<std::uint64_t>(*count);
      }
    }
    if (field.count > max_bytes / inner->size) return false;
    place(layout, std::move(field), alignment);
  }
  return true;
}

}  // namespace metalane::msl
