// Kernel signatures from declarations.
#include "msl/signature.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

namespace metalane::msl {
namespace {

constexpr std::uint32_t max_buffers = 31;  // Metal's table of buffer arguments
constexpr int max_type_depth = 3;          // aliases and records looked into for what is not supported

constexpr std::string_view thread_attributes[] = {
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_threadgroup",
    "threads_per_grid",
    "threadgroups_per_grid",
    "dispatch_threads_per_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_quadgroup",
    "simdgroup_index_in_threadgroup",
    "quadgroup_index_in_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "simdgroups_per_threadgroup",
    "quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup",
    "grid_origin",
    "grid_size",
};

// Attributes of the function at its head or behind its parameters.
std::vector<Attribute> function_attributes(const Unit& unit, const Item& item) {
  std::vector<Attribute> attributes;
  const Index end = item.body.end != 0 ? item.body.begin - 1 : item.tokens.end;
  for (Index i = item.tokens.begin; i < end; ++i) {
    if (unit.attribute_at(i)) {
      const auto more = split_attributes(unit, {i + 2, unit.match(i + 1)});
      attributes.insert(attributes.end(), more.begin(), more.end());
      i = unit.match(i);
    } else if (unit.is_at(i, "(") || unit.is_at(i, "{")) {
      i = unit.match(i);
    }
  }
  return attributes;
}

std::optional<std::string> host_name(const Unit& unit, const Item& item) {
  for (const Attribute& attribute : function_attributes(unit, item)) {
    if (attribute.name != "host_name") continue;
    std::string name;
    for (Index i = attribute.argument.begin; i < attribute.argument.end; ++i) {
      if (unit.at(i).kind == TokenKind::string) name += string_value(unit.at(i).text);
    }
    if (name.empty()) unit.sources().fail(unit.at(attribute.at), "host_name needs a string");
    return name;
  }
  return std::nullopt;
}

class SignatureReader {
 public:
  SignatureReader(const Unit& unit, const TypeTable& types, const Item& item, Kernel& kernel)
      : unit_(unit), types_(types), item_(item), kernel_(kernel) {}

  void read() {
    if (kernel_.is_template) bindings_ = types_.bind(item_, kernel_.template_arguments);
    for (const Range& part : unit_.split_commas(item_.params)) {
      const bool is_void = part.end - part.begin == 1 && unit_.is_at(part.begin, "void");
      if (!part.empty() && !is_void) read_parameter(part);
    }
    assign_missing("buffer");
    assign_missing("threadgroup");
    add_arguments();
    for (const Attribute& attribute : function_attributes(unit_, item_)) {
      if (attribute.name != "max_total_threads_per_threadgroup") continue;
      const auto value = types_.evaluate(types_.tokens(attribute.argument), bindings_);
      if (value && *value > 0 && *value <= 1024) {
        kernel_.signature.max_total_threads_per_threadgroup = static_cast<std::uint32_t>(*value);
      } else {
        refuse(attribute.at, "max_total_threads_per_threadgroup must be a constant from 1 to 1024");
      }
    }
  }

 private:
  struct Bound {
    KernelParameter parameter;
    Access access = Access::read_write;
    AddressSpace space = AddressSpace::device;
    bool has_index = false;
    Range guard;  // of [[function_constant(x)]]: may share an index
  };

  void refuse(Index at, const std::string& what) {
    if (!kernel_.refusal) kernel_.refusal = Kernel::Refusal{at, what};
  }

  void read_parameter(Range part) {
    const std::vector<Declarator> declarators = read_declarators(unit_, part);
    if (declarators.size() != 1 || declarators[0].name_at == no_index) {
      refuse(part.begin, "a kernel's argument must have a type and a name");
      return;
    }
    const Declarator& declarator = declarators[0];
    Bound bound;
    bound.parameter.at = declarator.name_at;
    bound.parameter.name = unit_.at(declarator.name_at).text;
    bound.parameter.type = types_.resolve(declarator, bindings_);
    if (const std::string_view word = unsupported_in(part, 0); !word.empty()) {
      refuse(part.begin, "argument \"" + bound.parameter.name + "\": " + std::string(word) +
                             " is not supported on the CPU device");
      return;
    }
    for (const Range& range : declarator.attributes) {
      for (const Attribute& attribute : split_attributes(unit_, range)) read_attribute(attribute, bound);
    }
    if (const auto list = buffer_list(part, declarator)) {
      bound.parameter.type = types_.resolve(list->element, bindings_);
      read_pointer(list->element, bound);
      set_count(list->count, bound);
    } else if (declarator.operators.empty() && !is_thread_attribute(bound.parameter.attribute) &&
               !declarator.extents.empty()) {
      // "constant int shape[3]" is a pointer, as arrays are wherever functions take them.
      Declarator pointer = declarator;
      pointer.extents.erase(pointer.extents.begin());
      bound.parameter.type = array_type(bound.parameter.type, pointer.extents);
      pointer.extents.clear();
      pointer.operators.push_back(Token{.text = "*"});
      read_pointer(pointer, bound);
    } else if (count(declarator, "*") + count(declarator, "&") == 0) {
      if (!is_thread_attribute(bound.parameter.attribute)) {
        refuse(bound.parameter.at,
               "argument \"" + bound.parameter.name +
                   "\" is neither a pointer, nor a reference, nor a thread position or size");
      } else if (!declarator.extents.empty() || bound.parameter.type.columns != 1 ||
                 bound.parameter.type.components > 3 ||
                 (bound.parameter.type.scalar != ScalarType::uint32 &&
                  bound.parameter.type.scalar != ScalarType::uint16)) {
        refuse(bound.parameter.at, "argument \"" + bound.parameter.name +
                                       "\" must be a uint or ushort, or a vector of 2 or 3 of them");
      }
    } else {
      read_pointer(declarator, bound);
    }
    bounds_.push_back(std::move(bound));
  }

  // A word for what the CPU device has not, in `range` or in the types that it names.
  std::string_view unsupported_in(Range range, int depth) const {
    for (Index i = range.begin; i < range.end; ++i) {
      if (!unit_.at(i).is_identifier()) continue;
      if (unsupported_word(unit_, i)) return unit_.at(i).text;
      for (const Index index : types_.declarations(unit_.at(i).text)) {
        const Item& item = unit_.items()[index];
        if (depth >= max_type_depth || item.tokens.contains(i)) continue;
        if (const std::string_view word = unsupported_in(item.tokens, depth + 1); !word.empty()) return word;
      }
    }
    return {};
  }

  static std::ptrdiff_t count(const Declarator& declarator, std::string_view spelling) {
    return std::count_if(declarator.operators.begin(), declarator.operators.end(),
                         [&](const Token& token) { return token.is(spelling); });
  }

  struct BufferList {
    Declarator element;
    std::optional<std::int64_t> count;
  };

  // "device T* x[N]" or "array<device T*, N> x".
  std::optional<BufferList> buffer_list(Range part, const Declarator& declarator) const {
    if (declarator.extents.size() == 1 && count(declarator, "*") == 1 && count(declarator, "&") == 0 &&
        count(declarator, "(") == 0) {
      BufferList list{declarator, types_.evaluate(types_.tokens(declarator.extents[0]), bindings_)};
      list.element.extents.clear();
      return list;
    }
    if (!declarator.operators.empty() || !declarator.extents.empty()) return std::nullopt;
    for (Index i = part.begin; i < declarator.name_at; ++i) {
      const Index close =
          unit_.is_at(i, "array") && unit_.is_at(i + 1, "<") ? unit_.angle_close(i + 1, part.end) : no_index;
      if (close == no_index) continue;
      const std::vector<Range> arguments = unit_.split_commas({i + 2, close});
      if (arguments.size() != 2) return std::nullopt;
      const std::vector<Declarator> elements = read_declarators(unit_, arguments[0]);
      if (elements.size() != 1 || count(elements[0], "*") == 0) return std::nullopt;
      return BufferList{elements[0], types_.evaluate(types_.tokens(arguments[1]), bindings_)};
    }
    return std::nullopt;
  }

  void set_count(std::optional<std::int64_t> count, Bound& bound) {
    const bool fits = count && *count > 0 && *count <= max_buffers;
    if (!fits) {
      refuse(bound.parameter.at, "argument \"" + bound.parameter.name + "\" must be an array of 1 to " +
                                     std::to_string(max_buffers) + " buffers");
    }
    bound.parameter.count = fits ? static_cast<std::uint32_t>(*count) : 1;
  }

  TypeInfo array_type(const TypeInfo& element, const std::vector<Range>& extents) const {
    if (extents.empty()) return element;
    std::uint64_t count = 1;
    for (const Range& extent : extents) {
      const auto value = types_.evaluate(types_.tokens(extent), bindings_);
      count = value && *value > 0 && *value < (1 << 30) && count < (1u << 30)
                  ? count * static_cast<std::uint64_t>(*value)
                  : 0;
    }
    TypeInfo array;
    array.name = element.name + "[" + std::to_string(count) + "]";
    array.size = element.size * count;
    array.alignment = element.alignment;
    return array;
  }

  void read_attribute(const Attribute& attribute, Bound& bound) {
    if (attribute.name == "buffer" || attribute.name == "threadgroup") {
      bound.parameter.attribute = attribute.name;
      const auto index = types_.evaluate(types_.tokens(attribute.argument), bindings_);
      if (!index || *index < 0 || *index >= max_buffers) {
        refuse(attribute.at, std::string(attribute.name) + " index must be a constant from 0 to " +
                                 std::to_string(max_buffers - 1));
        return;
      }
      bound.parameter.index = static_cast<std::uint32_t>(*index);
      bound.has_index = true;
    } else if (attribute.name == "function_constant") {
      bound.guard = attribute.argument;
    } else if (is_thread_attribute(attribute.name)) {
      bound.parameter.attribute = attribute.name;
    } else if (attribute.name != "maybe_unused" && attribute.name != "id") {
      refuse(attribute.at,
             "attribute \"" + std::string(attribute.name) + "\" is not supported on the CPU device");
    }
  }

  void read_pointer(const Declarator& declarator, Bound& bound) {
    const std::ptrdiff_t pointers = count(declarator, "*"), references = count(declarator, "&");
    const bool array_reference = references == 1 && pointers == 0 && !declarator.extents.empty();
    if (count(declarator, "(") > 0 && !array_reference)
      refuse(bound.parameter.at, "function pointers are not supported on the CPU device");
    bool is_const = false;
    bool have_space = false;
    for (const Token& token : declarator.type) {
      is_const |= token.is("const") || token.is("constant");
      if (token.is("device") || token.is("constant") || token.is("threadgroup")) {
        have_space = true;
        bound.space = token.is("device")     ? AddressSpace::device
                      : token.is("constant") ? AddressSpace::constant
                                             : AddressSpace::threadgroup;
      }
    }
    const std::string argument = "argument \"" + bound.parameter.name + "\"";
    if (!have_space)
      refuse(bound.parameter.at, argument + " must point into device, constant or threadgroup memory");
    if (pointers + references != 1 || (!declarator.extents.empty() && !array_reference)) {
      refuse(bound.parameter.at,
             argument + ": pointers and references to pointers are not supported on the CPU device");
    }
    if (const std::string field = pointer_field(bound.parameter.type.layout.get()); !field.empty()) {
      refuse(bound.parameter.at, argument + ": \"" + bound.parameter.type.name + "\" has the pointer \"" +
                                     field + "\": not supported on the CPU device");
    }
    bound.parameter.is_reference = references == 1;
    bound.access = is_const ? Access::read : Access::read_write;
    const bool threadgroup = bound.space == AddressSpace::threadgroup;
    if (bound.parameter.attribute.empty()) bound.parameter.attribute = threadgroup ? "threadgroup" : "buffer";
    if (bound.parameter.attribute != (threadgroup ? "threadgroup" : "buffer")) {
      refuse(bound.parameter.at,
             argument + " cannot have the attribute \"" + bound.parameter.attribute + "\"");
    }
    if (array_reference) bound.parameter.type = array_type(bound.parameter.type, declarator.extents);
  }

  // The path of a field that is a pointer; empty where there is none.
  static std::string pointer_field(const StructLayout* layout) {
    if (!layout) return {};
    for (const StructField& field : layout->fields) {
      if (is_pointer(field.type)) return field.name;
      if (const std::string inner = pointer_field(field.type.layout.get()); !inner.empty())
        return field.name + "." + inner;
    }
    return {};
  }

  // Metal gives an argument without an index the lowest one that is free.
  void assign_missing(std::string_view attribute) {
    std::set<std::uint32_t> used;
    for (const Bound& bound : bounds_) {
      if (bound.parameter.attribute != attribute || !bound.has_index) continue;
      for (std::uint32_t i = 0; i < places(bound); ++i) {
        const std::uint32_t index = bound.parameter.index + i;
        if (!used.insert(index).second && bound.guard.empty()) {
          refuse(bound.parameter.at, "argument \"" + bound.parameter.name + "\": " + std::string(attribute) +
                                         " index " + std::to_string(index) + " is used twice");
        }
      }
    }
    for (Bound& bound : bounds_) {
      if (bound.parameter.attribute != attribute || bound.has_index) continue;
      std::uint32_t index = 0, free = 0;  // the first of `free` indices in a row
      for (; free < places(bound); ++free) {
        if (!used.count(index + free)) continue;
        index += free + 1;
        free = -1u;
      }
      bound.parameter.index = index;
      for (std::uint32_t i = 0; i < free; ++i) used.insert(index + i);
    }
    for (Bound& bound : bounds_) {
      if (bound.parameter.attribute != attribute) continue;
      if (bound.parameter.index + places(bound) <= max_buffers) continue;
      refuse(bound.parameter.at, "a kernel has at most 31 buffers");
      bound.parameter.index = 0;
    }
  }

  static std::uint32_t places(const Bound& bound) { return std::max(bound.parameter.count, 1u); }

  void add_arguments() {
    std::vector<std::pair<KernelArgument, TokenList>> arguments;
    for (Bound& bound : bounds_) {
      const KernelParameter& parameter = bound.parameter;
      if (parameter.attribute == "buffer" || parameter.attribute == "threadgroup") {
        for (std::uint32_t i = 0; i < places(bound); ++i) {
          const std::string element = parameter.count > 0 ? "[" + std::to_string(i) + "]" : "";
          KernelArgument argument{
              parameter.name + element, bound.space,    bound.access,        parameter.index + i,
              parameter.is_reference,   parameter.type, !bound.guard.empty()};
          arguments.emplace_back(std::move(argument), types_.tokens(bound.guard));
        }
      }
      kernel_.parameters.push_back(std::move(bound.parameter));
    }
    std::stable_sort(arguments.begin(), arguments.end(), [](const auto& a, const auto& b) {
      const bool a_group = a.first.space == AddressSpace::threadgroup;
      const bool b_group = b.first.space == AddressSpace::threadgroup;
      return a_group != b_group ? b_group : a.first.index < b.first.index;
    });
    for (auto& [argument, guard] : arguments) {
      kernel_.signature.arguments.push_back(std::move(argument));
      kernel_.guards.push_back(std::move(guard));
    }
  }

  const Unit& unit_;
  const TypeTable& types_;
  const Item& item_;
  Kernel& kernel_;
  Bindings bindings_;
  std::vector<Bound> bounds_;
};

// Binds the parameters `names` where `pattern`, a type that a template takes, has become `given`.
class Deduction {
 public:
  Deduction(const TypeTable::Names& names, Bindings& bindings) : names_(names), bindings_(bindings) {}

  void match(const TokenList& pattern, const TokenList& given) {
    const TokenList wanted = bare(pattern), found = bare(given);
    std::size_t k = 0;
    for (std::size_t i = 0; i < wanted.size() && k < found.size(); ++i) {
      if (std::find(names_.begin(), names_.end(), wanted[i].text) == names_.end()) {
        if (wanted[i].text != found[k].text) return;
        ++k;
        continue;
      }
      const std::string_view stop = i + 1 < wanted.size() ? wanted[i + 1].text : std::string_view();
      TokenList argument;
      for (int depth = 0; k < found.size(); ++k) {
        if (depth == 0 && !stop.empty() && found[k].text == stop) break;
        depth += found[k].is("<") ? 1 : found[k].is(">") ? -1 : found[k].is(">>") ? -2 : 0;
        argument.push_back(found[k]);
      }
      if (!argument.empty()) bindings_.emplace(wanted[i].text, std::move(argument));
    }
  }

 private:
  // Without attributes, and without what a template argument leaves to the parameter's type.
  static TokenList bare(const TokenList& type) {
    TokenList tokens;
    for (std::size_t i = 0; i < type.size(); ++i) {
      if (type[i].is("[") && i + 1 < type.size() && type[i + 1].is("[")) {
        while (i < type.size() && !(type[i].is("]") && i + 1 < type.size() && type[i + 1].is("]"))) ++i;
        ++i;
      } else if (!is_qualifier(type[i].text) && !is_address_space(type[i].text)) {
        tokens.push_back(type[i]);
      }
    }
    return tokens;
  }

  const TypeTable::Names& names_;
  Bindings& bindings_;
};

// Adds the template arguments that an instantiation leaves to its parameter list.
void deduce_arguments(const Unit& unit, const TypeTable& types, const Item& instance, Kernel& kernel) {
  const Item& function = unit.items()[kernel.item];
  const TypeTable::Names names = TypeTable::parameter_names(unit, function.template_params);
  if (kernel.template_arguments.size() >= names.size()) return;
  Bindings bindings;
  const std::vector<Range> wanted = unit.split_commas(function.params);
  const std::vector<Range> given = unit.split_commas(instance.params);
  for (std::size_t i = 0; i < std::min(wanted.size(), given.size()); ++i) {
    const auto pattern = read_declarators(unit, wanted[i]), type = read_declarators(unit, given[i]);
    if (pattern.size() == 1 && type.size() == 1)
      Deduction(names, bindings).match(pattern[0].type, type[0].type);
  }
  const Bindings defaults = types.bind(function, {});
  for (std::size_t i = kernel.template_arguments.size(); i < names.size(); ++i) {
    const auto found = bindings.find(names[i]);
    if (found == bindings.end()) {
      if (!defaults.count(names[i])) {
        kernel.refusal =
            Kernel::Refusal{instance.name_at, "the instantiation must name its template argument \"" +
                                                  std::string(names[i]) + "\""};
      }
      return;  // defaults are for the compiler to fill in
    }
    kernel.template_arguments.push_back(found->second);
  }
}

std::string spelled_arguments(const std::vector<TokenList>& arguments) {
  std::string text;
  for (const TokenList& argument : arguments) {
    if (!text.empty()) text += ", ";
    for (std::size_t i = 0; i < argument.size(); ++i) {
      if (i > 0 && argument[i].space_before) text += ' ';
      text += argument[i].text;
    }
  }
  return text;
}

}  // namespace

bool is_thread_attribute(std::string_view name) {
  return std::find(std::begin(thread_attributes), std::end(thread_attributes), name) !=
         std::end(thread_attributes);
}

// Names that a program may use for its own things count only where they stand as a type.
bool unsupported_word(const Unit& unit, Index i) {
  static constexpr std::string_view templates[] = {"texture1d",
                                                   "texture1d_array",
                                                   "texture2d",
                                                   "texture2d_array",
                                                   "texture2d_ms",
                                                   "texture2d_ms_array",
                                                   "texture3d",
                                                   "texturecube",
                                                   "texturecube_array",
                                                   "texture_buffer",
                                                   "depth2d",
                                                   "depth2d_array",
                                                   "depth2d_ms",
                                                   "depth2d_ms_array",
                                                   "depthcube",
                                                   "depthcube_array",
                                                   "imageblock",
                                                   "visible_function_table",
                                                   "intersection_function_table",
                                                   "intersector",
                                                   "intersection_query",
                                                   "acceleration_structure",
                                                   "tensor",
                                                   "mesh",
                                                   "interpolant",
                                                   "matmul2d",
                                                   "convolution2d"};
  static constexpr std::string_view names[] = {"sampler",
                                               "instance_acceleration_structure",
                                               "primitive_acceleration_structure",
                                               "command_buffer",
                                               "render_pipeline_state",
                                               "compute_pipeline_state",
                                               "render_command",
                                               "compute_command",
                                               "matmul2d_descriptor",
                                               "convolution2d_descriptor",
                                               "ray",
                                               "intersection_params",
                                               "mesh_grid_properties"};
  const std::string_view word = unit.at(i).text;
  if (unit.declares(word)) return false;
  if (unit.is_at(i + 1, "<"))
    return unit.match(i + 1) != no_index &&
           std::find(std::begin(templates), std::end(templates), word) != std::end(templates);
  const bool declares =
      i + 1 < unit.tokens().size() && (unit.at(i + 1).is_identifier() || unit.is_at(i + 1, "("));
  return declares && std::find(std::begin(names), std::end(names), word) != std::end(names);
}

std::vector<Attribute> split_attributes(const Unit& unit, Range contents) {
  std::vector<Attribute> attributes;
  for (const Range& part : unit.split_commas(contents)) {
    for (Index i = part.begin; i < part.end; ++i) {
      const bool scope = unit.is_at(i + 1, "::");
      if (!unit.at(i).is_identifier() || scope) continue;
      Attribute attribute{unit.at(i).text, i, {}};
      if (unit.is_at(i + 1, "(")) attribute.argument = {i + 2, unit.match(i + 1)};
      attributes.push_back(attribute);
      break;
    }
  }
  return attributes;
}

std::vector<Kernel> read_kernels(const Unit& unit, const TypeTable& types) {
  std::vector<Kernel> kernels;
  std::unordered_map<std::string_view, Index> templates;
  std::unordered_map<std::string, Index> seen;
  for (Index i = 0; i < unit.items().size(); ++i) {
    const Item& item = unit.items()[i];
    Kernel kernel;
    Index place = item.name_at;
    if (item.kind == ItemKind::function && item.is_kernel && item.body.end != 0) {
      // "template <> [[host_name("f_int")]] kernel void f<int>(...) { ... }" is an instance with a body of
      // its own.
      const Range arguments = unit.is_at(item.name_at + 1, "<") && unit.match(item.name_at + 1) != no_index
                                  ? Range{item.name_at + 2, unit.match(item.name_at + 1)}
                                  : Range{};
      if (item.is_template && (arguments.empty() || !host_name(unit, item))) {
        templates.emplace(unit.at(item.name_at).text, i);
        continue;
      }
      kernel.item = i;
      kernel.is_template = item.is_template;
      if (item.is_template) kernel.template_range = arguments;
      kernel.signature.function = unit.at(item.name_at).text;
      kernel.signature.name = host_name(unit, item).value_or(kernel.signature.function);
    } else if (item.kind == ItemKind::instantiation && item.name_at != no_index) {
      const auto name = host_name(unit, item);
      const auto found = templates.find(unit.at(item.name_at).text);
      if (!name || found == templates.end()) continue;
      kernel.item = found->second;
      kernel.is_template = true;
      kernel.template_range = item.template_params;
      for (const Range& part : unit.split_commas(item.template_params)) {
        kernel.template_arguments.push_back(types.tokens(part));
      }
      deduce_arguments(unit, types, item, kernel);
      kernel.signature.name = *name;
      kernel.signature.function =
          std::string(found->first) + "<" + spelled_arguments(kernel.template_arguments) + ">";
    } else {
      continue;
    }
    const auto [other, fresh] = seen.emplace(kernel.signature.name, place);
    if (!fresh) {
      const Token& first = unit.at(other->second);
      unit.sources().fail(unit.at(place),
                          "kernel \"" + kernel.signature.name + "\" is declared a second time; first in " +
                              unit.sources().name(first.file) + ":" + std::to_string(first.line));
    }
    SignatureReader(unit, types, unit.items()[kernel.item], kernel).read();
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

std::vector<FunctionConstantDeclaration> read_function_constants(const Unit& unit, const TypeTable& types) {
  std::vector<FunctionConstantDeclaration> constants;
  for (Index i = 0; i < unit.items().size(); ++i) {
    const Item& item = unit.items()[i];
    if (item.kind != ItemKind::variable) continue;
    for (const Declarator& declarator : read_declarators(unit, item.tokens)) {
      for (const Range& range : declarator.attributes) {
        for (const Attribute& attribute : split_attributes(unit, range)) {
          if (attribute.name != "function_constant") continue;
          const auto index = types.evaluate(types.tokens(attribute.argument), {});
          if (!index || *index < 0 || *index > 65535 || declarator.name_at == no_index) {
            unit.sources().fail(unit.at(attribute.at),
                                "function_constant index must be a constant from 0 to 65535");
          }
          FunctionConstant constant;
          constant.name = unit.at(declarator.name_at).text;
          constant.index = static_cast<std::uint32_t>(*index);
          constant.type = types.resolve(declarator, {});
          constants.push_back({std::move(constant), i});
        }
      }
    }
  }
  return constants;
}

}  // namespace metalane::msl
