// A C++ program that uses an installed metalane as its users would: a custom kernel, the selector, a capture,
// an error.
#include <dlfcn.h>
#include <metalane/metalane.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

int failures = 0;

void expect(bool ok, const char* what) {
  std::printf("%s %s\n", ok ? "ok    " : "FAILED", what);
  if (!ok) ++failures;
}

constexpr const char* kSource = R"(
#include <metal_stdlib>
using namespace metal;
kernel void axpy(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                 constant float& scale [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] += scale * x[i];
}
)";

void custom_kernel(const metalane::Device& device) {
  constexpr std::uint64_t n = 1000;
  std::vector<float> x(n), y(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(i);
    y[i] = 1.0f;
  }
  metalane::Buffer xs = device.copy_of(x.data(), {n}, metalane::DType::float32);
  metalane::Buffer ys = device.copy_of(y.data(), {n}, metalane::DType::float32);
  device.registry().register_source("axpy", kSource);
  const metalane::Pipeline axpy = device.registry().pipeline("axpy");
  metalane::CommandEncoder encoder = device.command_encoder();
  const float scale = 2.0f;
  encoder.dispatch(axpy, {{0, ys}, {1, xs}, {2, scale}}, metalane::Grid::threads({n}, {64}));
  // The second launch must see the first one's result.
  encoder.dispatch(axpy, {{0, ys}, {1, xs}, {2, scale}}, metalane::Grid::threads({n}, {64}));
  encoder.commit_and_wait();
  const auto* result = static_cast<const float*>(ys.data());
  bool right = true;
  for (std::uint64_t i = 0; i < n; ++i) right = right && result[i] == 1.0f + 4.0f * x[i];
  expect(right, "custom kernel, twice, ordered by its declared access");
}

void selector(const metalane::Device& device) {
  constexpr std::uint64_t vocabulary = 100;
  auto buffers = metalane::DFlash2SelectorBuffers::alloc(device, 1, 2, vocabulary);
  auto* logits = static_cast<float*>(buffers.logits.data());
  for (std::uint64_t id = 0; id < vocabulary; ++id) logits[vocabulary + id] = id == 42 ? 5.0f : -1.0f;
  metalane::DFlash2SelectorParams params = {};
  params.lanes = 1;
  params.rows_per_lane = 2;
  params.vocabulary = vocabulary;
  for (float& temperature : params.temperature) temperature = 1.0f;
  metalane::CommandEncoder encoder = device.command_encoder();
  metalane::dispatch_dflash2_selector(encoder, buffers, params);
  encoder.commit_and_wait();
  expect(*static_cast<const std::uint32_t*>(buffers.tokens.data()) == 42, "selector takes the largest logit");
}

void verification(const metalane::Device& device) {
  constexpr std::uint64_t vocabulary = 100;
  auto buffers = metalane::SpeculativeVerifyBuffers::alloc(device, 1, 3, vocabulary);  // a greedy lane
  auto* logits = static_cast<float*>(buffers.logits.data());
  auto* tokens = static_cast<std::uint32_t*>(buffers.tokens.data());
  logits[7] = logits[vocabulary + 8] = logits[2 * vocabulary + 9] = 1.0f;
  tokens[0] = 7, tokens[1] = 80;
  *static_cast<std::uint32_t*>(buffers.verify_rows.data()) = 3;
  metalane::CommandEncoder encoder = device.command_encoder();
  metalane::dispatch_speculative_verify(encoder, buffers, {1, 3, vocabulary, 16});
  encoder.commit_and_wait();
  const auto* accepted = static_cast<const std::uint32_t*>(buffers.accepted.data());
  expect(*accepted == 1 && *static_cast<const std::uint32_t*>(buffers.next_tokens.data()) == 8,
         "the first drafted token stays, the second gives way");
  metalane::AcceptanceModel model;
  const std::array<float, 2> confidence = {0.9f, 0.1f};
  const std::array<std::uint32_t, 1> rows = {3};
  model.observe_verified(confidence, {accepted, 1}, rows);
  model.fit();
  expect(model.probability(0, 0.5f) > 0.5 && model.probability(1, 0.5f) < 0.5, "acceptance is learned from");
}

// Writes a GGUF file of one tensor and adds that to a buffer with the kernel of before, on the file's own
// pages.
void weights(const metalane::Device& device) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("metalane_consumer_" + std::to_string(getpid()) + ".gguf"))
          .string();
  std::ofstream stream(path, std::ios::binary);
  const auto put = [&stream](const auto& value) {
    stream.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  constexpr std::uint64_t tensors = 1, keys = 0, name_bytes = 1, n = 4, offset = 0;
  constexpr std::uint32_t magic = 0x46554747, version = 3, dimensions = 1;
  put(magic), put(version), put(tensors), put(keys);
  put(name_bytes), put('w'), put(dimensions), put(n), put(metalane::GgmlType::F32), put(offset);
  constexpr std::uint64_t data_begin = 64;
  while (static_cast<std::uint64_t>(stream.tellp()) < data_begin) put('\0');
  for (float value : {1.0f, 2.0f, 3.0f, 4.0f}) put(value);
  stream.close();

  const metalane::GgufFile file(path);
  expect(file.tensors().size() == 1 && file.tensor("w").offset == data_begin, "a GGUF file is read");
  const metalane::Buffer w = file.load_tensor("w", device);
  const metalane::Buffer sums = device.zeros({n}, metalane::DType::float32);
  metalane::CommandEncoder encoder = device.command_encoder();
  const float scale = 10.0f;
  encoder.dispatch(device.registry().pipeline("axpy"), {{0, sums}, {1, w}, {2, scale}},
                   metalane::Grid::threads({n}, {32}));
  encoder.commit_and_wait();
  expect(static_cast<const float*>(sums.data())[3] == 40.0f, "a kernel reads weights where the file lies");
  const metalane::Buffer product = device.zeros({1}, metalane::DType::float32);
  metalane::CommandEncoder multiplying = device.command_encoder();
  metalane::quantized_matmul_ggml(multiplying, sums, w, product,
                                  {1, 1, n, static_cast<std::uint32_t>(metalane::GgmlType::F32)});
  multiplying.commit_and_wait();
  expect(*static_cast<const float*>(product.data()) == 300.0f, "a product takes its weights from there, too");
  try {
    metalane::GgufFile("consumer_nothing.gguf");
    expect(false, "a file that is not there is refused");
  } catch (const metalane::GgufError& error) {
    expect(error.field() == "file", "a file that is not there is refused");
  }
  std::remove(path.c_str());
}

void capture(const metalane::Device& device) {
  metalane::Buffer values = device.zeros({256}, metalane::DType::uint32);
  const std::uint8_t one[4] = {1, 0, 0, 0};
  metalane::CommandEncoder recording = device.command_encoder();
  recording.start_capture();
  recording.fill(values, one);
  const metalane::ComputeGraph graph = recording.take_capture();
  recording.commit_and_wait();
  expect(graph.size() == 1, "a capture holds one node");
  expect(static_cast<const std::uint32_t*>(values.data())[255] == 0, "a captured launch does not run");
  metalane::CommandEncoder replay = device.command_encoder();
  graph.encode(replay);
  replay.commit_and_wait();
  expect(static_cast<const std::uint32_t*>(values.data())[255] == 1, "a replayed launch runs");
  const metalane::Buffer others = device.zeros({256}, metalane::DType::uint32);
  const metalane::GraphRebinding to_others[] = {{values, others}};
  graph.replay({}, to_others).wait();
  expect(static_cast<const std::uint32_t*>(others.data())[255] == 1, "a replay runs on other memory");
}

void errors(const metalane::Device& device) {
  try {
    device.zeros({4}, metalane::DType::float32).view(2, {1});
    expect(false, "a misaligned view is refused");
  } catch (const metalane::ArgumentError& error) {
    expect(error.argument() == "byte_offset" && std::string(error.what()).find("got 2") != std::string::npos,
           "a misaligned view is refused, in words");
  }
  device.registry().register_source(
      "broken", "#include <metal_stdlib>\nkernel void broken(device float* x) { x[0] = nonsense; }\n");
  try {
    device.registry().pipeline("broken");
    expect(false, "a source that does not compile is refused");
  } catch (const metalane::CompileError& error) {
    expect(std::string(error.what()).find("nonsense") != std::string::npos,
           "a compile error shows the reason");
  }
}

void no_python() { expect(dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr, "no Python in this process"); }

}  // namespace

int main() {
  std::printf("metalane %s\n", METALANE_VERSION);
  const metalane::Device device("cpu");
  custom_kernel(device);
  weights(device);
  selector(device);
  verification(device);
  capture(device);
  errors(device);
  no_python();
  return failures == 0 ? 0 : 1;
}
