// The extension module metalane._core.
#include "bindings/bindings.h"

NB_MODULE(_core, module) {
  using namespace metalane::python;
  module.doc() = "Native part of metalane: devices, buffers, kernels, encoders, graphs and operators.";
  module.attr("VERSION") = METALANE_VERSION;
  // Objects that live until the process ends are freed with it.
  nanobind::set_leak_warnings(false);
  bind_errors(module);
  bind_lifetime(module);
  bind_waits();
  bind_kernel(module);
  bind_struct(module);
  bind_argument_values(module);
  bind_layouts(module);
  bind_buffer(module);
  bind_ticket(module);
  bind_aio(module);
  bind_graph(module);
  bind_encoder(module);
  bind_device(module);
  bind_buffer_pool(module);
  bind_cpu(module);
  bind_gguf(module);
  bind_null_record(module);
  bind_dflash2_selector(module);
  bind_ggml_products(module);
  bind_speculative_rows(module);
  bind_speculative_verify(module);
  bind_acceptance_model(module);
}
