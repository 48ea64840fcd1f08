// Program: reads a source once, answers questions about it, emits modules.
#include "msl/msl.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "core/hash.h"
#include "msl/family.h"
#include "msl/function_constants.h"
#include "msl/module_writer.h"
#include "msl/pointer_spaces.h"
#include "msl/preprocessor.h"
#include "msl/reachability.h"
#include "msl/restrictions.h"
#include "msl/signature.h"
#include "msl/types.h"

namespace metalane::msl {
namespace {

class ProgramImpl final : public Program {
 public:
  ProgramImpl(const std::string& name, const std::string& text,
              const std::map<std::string, std::string>& headers)
      : unit_(sources_, preprocess(sources_, name, text, headers)),
        types_(unit_),
        kernels_(read_kernels(unit_, types_)),
        constants_(read_function_constants(unit_, types_)),
        reachability_(unit_) {
    check_restrictions(unit_);
    check_pointer_spaces(unit_);
    for (Kernel& kernel : kernels_) {
      for (const auto& declared : constants_) kernel.signature.constants.push_back(declared.constant);
      signatures_.push_back(kernel.signature);
    }
    write_expanded_text();
  }

  const std::vector<KernelSignature>& kernels() const override { return signatures_; }

  KernelSignature signature(const std::string& name,
                            const std::vector<ConstantValue>& constants) const override {
    const Kernel& kernel = find(name);
    std::deque<std::string> texts;  // what the bound tokens refer to
    Bindings values;
    for (const ConstantValue& value : constants) {
      const FunctionConstant* constant = find_constant(constants_, value);
      // Guards are integers and truth values.
      struct Text {
        std::string operator()(double) const { return {}; }
        std::string operator()(const std::vector<ConstantNumber>&) const { return {}; }
        std::string operator()(std::uint64_t number) const { return std::to_string(number); }
        std::string operator()(std::int64_t number) const {
          return number < 0 ? "(" + std::to_string(number) + ")" : std::to_string(number);
        }
        std::string operator()(bool flag) const { return flag ? "1" : "0"; }
      };
      std::string text = std::visit(Text{}, value.value);
      if (!constant || text.empty()) continue;
      texts.push_back(std::move(text));
      values[constant->name] = {Token{.text = texts.back(), .kind = TokenKind::number}};
    }
    KernelSignature signature = kernel.signature;
    std::vector<KernelArgument>& arguments = signature.arguments;
    for (std::size_t i = 0; i < kernel.guards.size(); ++i) {
      const TokenList& guard = kernel.guards[i];
      const bool absent = !guard.empty() && types_.evaluate_guard(guard, values).value_or(1) == 0;
      if (absent) arguments[i].access = Access::none;
    }
    const auto gives_way = [&](const KernelArgument& argument) {
      const auto takes_its_place = [&](const KernelArgument& other) {
        return other.index == argument.index && other.space != AddressSpace::threadgroup &&
               (other.access != Access::none || &other < &argument);
      };
      return argument.access == Access::none &&
             std::any_of(arguments.begin(), arguments.end(), takes_its_place);
    };
    std::vector<KernelArgument> present;
    std::copy_if(arguments.begin(), arguments.end(), std::back_inserter(present),
                 [&](const KernelArgument& argument) { return !gives_way(argument); });
    arguments = std::move(present);
    return signature;
  }

  std::vector<BoundConstant> bind_constants(const std::string& name,
                                            const std::vector<ConstantValue>& constants) const override {
    return msl::bind_constants({unit_, reachability_, constants_, find(name), constants, {}, false});
  }

  std::string explain(const std::string& messages) const override { return sources_.explain(messages); }

  std::shared_ptr<const StructLayout> layout(const std::string& struct_name) const override {
    return types_.layout(struct_name);
  }

  const std::string& expanded_text() const override { return expanded_; }

  std::string adapt(const std::string& name, const AdaptOptions& options) const override {
    return module_prologue() + module_text(find(name), options.constants, options.module_symbol, false);
  }

  std::string family_text(const std::string& family) const {
    std::string text = "// The kernels of family " + family + ".\n" + module_prologue();
    std::string table;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const std::string space = "metalane_part_" + std::to_string(i);
      text += module_text(kernels_[i], {}, space, true);
      table += "  &" + space + "::metalane_module_table,\n";
    }
    return text +
           "extern \"C\" {\nextern const metalane_module* const METALANE_FAMILY_TABLE_SYMBOL[];\n"
           "const metalane_module* const METALANE_FAMILY_TABLE_SYMBOL[] = {\n" +
           table + "  nullptr,\n};\n}\n";
  }

 private:
  const Kernel& find(const std::string& name) const {
    std::string known;
    for (const Kernel& kernel : kernels_) {
      if (kernel.signature.name == name) return kernel;
      known += (known.empty() ? "" : ", ") + kernel.signature.name;
    }
    throw KernelNotFoundError("kernel \"" + name + "\" is not in this source; it has " +
                              (known.empty() ? "no kernels" : known));
  }

  std::string module_text(const Kernel& kernel, const std::vector<ConstantValue>& values,
                          const std::string& symbol, bool is_part) const {
    try {
      return write_module({unit_, reachability_, constants_, kernel, values, symbol, is_part});
    } catch (const CompileError& error) {
      throw CompileError(kernel.signature.name, "kernel \"" + kernel.signature.name + "\": " + error.what());
    }
  }

  // Each line of the source with its place, so that texts that differ in what an error would say differ here.
  void write_expanded_text() {
    std::uint32_t line = 0;
    std::int32_t file = -1;
    for (const Token& token : unit_.tokens()) {
      if (token.line != line || token.file != file) {
        if (token.file != file) expanded_ += "\n" + sources_.name(token.file);
        line = token.line;
        file = token.file;
        expanded_ += "\n" + std::to_string(line) + "\t";
      } else {
        expanded_ += ' ';
      }
      expanded_ += token.text;
    }
  }

  SourceSet sources_;
  Unit unit_;
  TypeTable types_;
  std::vector<Kernel> kernels_;
  std::vector<FunctionConstantDeclaration> constants_;
  ReachabilityIndex reachability_;
  std::vector<KernelSignature> signatures_;
  std::string expanded_;
};

}  // namespace

std::shared_ptr<const Program> Program::read(const std::string& name, const std::string& text,
                                             const std::map<std::string, std::string>& headers) {
  return std::make_shared<ProgramImpl>(name, text, headers);
}

std::string adapt_family(const Program& program, const std::string& family) {
  return static_cast<const ProgramImpl&>(program).family_text(family);
}

const std::string& stdlib_version() {
  static const std::string version = [] {
    std::string all;
    for (const StdlibHeader& header : stdlib_headers()) {
      for (const std::string& part : {std::string(header.path), std::string(header.text)}) {
        all += std::to_string(part.size()) + ":" + part;
      }
    }
    return core::sha256_hex(all);
  }();
  return version;
}

}  // namespace metalane::msl
