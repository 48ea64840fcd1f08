// Gather, mat-vec and mat-mat with GGML weights, dense and routed, over a vector type `V` and the
// descriptions of native_ggml_blocks.h, whose rules on linkage hold here, too.
//
// V has besides: mv_rows(inputs), how many rows of weights take turns in a mat-vec of 1, 2, 4 or 8 inputs (0:
// the registers do not hold the sums, half of the inputs at a time); mm_rows and mm_inputs, the tile of sums
// of mat-mat.
//
// Order of sums. Lane l of 16 takes elements l, l + 16, ...; mat-mat adds up the lanes every mm_depth
// elements. Both depend on k alone, so that a row of inputs gives the same bits whatever stands beside it and
// however many threads share the work.
#pragma once

#include <metalane/params/embedding_ggml.h>
#include <metalane/params/quantized_matmul_ggml.h>

#include "backends/cpu/native_ggml.h"
#include "backends/cpu/native_ggml_blocks.h"
#include "backends/cpu/native_ggml_schedule.h"

namespace metalane::cpu {
namespace {

constexpr std::uint32_t least(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }
constexpr std::uint32_t pieces(std::uint64_t count, std::uint32_t each) {
  return static_cast<std::uint32_t>((count + each - 1) / each);
}

// Whether `size` bytes hold `count` things of `each` bytes.
constexpr bool fits(std::uint64_t size, std::uint64_t count, std::uint64_t each) {
  std::uint64_t bytes = 0;
  return !__builtin_mul_overflow(count, each, &bytes) && bytes <= size;
}

// Weights of a row that are decoded together: one large block, or eight small ones.
constexpr std::uint32_t stretch = 256;

// Takes the weights of a block that begins at `at`.
template <class Sink>
struct Shifted {
  Sink& sink;
  std::uint32_t at;
  template <class Floats>
  void take(std::uint32_t place, Floats w) {
    sink.take(at + place, w);
  }
};

// Gives elements [begin, end) of a row to `sink`; begin is a multiple of 256, end is one or the row's end.
// What a type without blocks has left over behind the last 16 goes to sink.rest(at, w, n).
template <class V, class Type, class Sink>
inline void decode_row(const std::uint8_t* row, std::uint32_t begin, std::uint32_t end, Sink& sink) {
  if constexpr (Type::block_length == 1) {
    std::uint32_t at = begin;
    for (; at + 16 <= end; at += 16)
      sink.take(at, Type::template sixteen<V>(row + std::uint64_t{at} * Type::block_bytes));
    if (at < end) {
      const std::uint8_t* elements = row + std::uint64_t{at} * Type::block_bytes;
      sink.rest(at, first_of_sixteen<V, Type>(elements, end - at), end - at);
    }
  } else {
    for (std::uint32_t at = begin; at < end; at += stretch) {
      const std::uint8_t* const blocks = row + row_bytes<Type>(at);
      const std::uint32_t count = least(end - at, stretch) / Type::block_length;
      typename Type::Prepared prepared;
      Type::template prepare<V>(blocks, count, prepared);
      through_memory(prepared);
      for (std::uint32_t i = 0; i < count * Type::block_length / Type::piece_length; ++i) {
        Shifted<Sink> piece{sink, at + i * Type::piece_length};
        Type::template decode<V>(blocks, prepared, i, piece);
      }
    }
  }
}

// Writes weights as floats; zeros behind the last ones where `padded`.
template <class V, bool padded = false>
struct Store {
  float* to;
  void take(std::uint32_t at, typename V::Floats w) { V::store(to + at, w); }
  void rest(std::uint32_t at, typename V::Floats w, std::uint32_t n) {
    padded ? V::store(to + at, w) : V::store_first(to + at, n, w);
  }
};

// Adds the products of one row of weights with some rows of inputs.
template <class V, std::uint32_t inputs>
struct Multiply {
  typename V::Floats sums[inputs];
  const float* input[inputs];

  void take(std::uint32_t at, typename V::Floats w) {
    for (std::uint32_t i = 0; i < inputs; ++i) sums[i] = V::multiply_add(w, V::load(input[i] + at), sums[i]);
  }
  void rest(std::uint32_t at, typename V::Floats w, std::uint32_t n) {
    for (std::uint32_t i = 0; i < inputs; ++i)
      sums[i] = V::multiply_add(w, V::load_first(input[i] + at, n), sums[i]);
  }
};

// Asks for a stretch of weights that will be read from `at` on, for the second cache.
template <class Type>
inline void fetch_stretch(const std::uint8_t* at) {
  constexpr std::uint64_t line = 64, bytes = stretch / Type::block_length * Type::block_bytes;
#pragma GCC unroll 16
  for (std::uint64_t i = 0; i < bytes; i += line) __builtin_prefetch(at + i, 0, 2);
}

// Element `at` of one of `rows` rows is about to be read: asks for that of the row that will follow in its
// place, or, where rows are that long, for what is a little further on. Several rows at a time, each in pages
// of its own, are more than the processor foresees by itself.
template <class Type>
inline void fetch_ahead(const std::uint8_t* row, std::uint32_t at, std::uint32_t k, std::uint32_t rows) {
  constexpr std::uint64_t most = 256 * 1024, within_row = 4096;
  const std::uint64_t next = rows * row_bytes<Type>(k);
  fetch_stretch<Type>(row + row_bytes<Type>(at) + (next <= most ? next : within_row));
}

// The inputs at `place` are read from memory once more, as operands of multiplications: kept for the next row
// of weights, those of a piece of eight inputs would take the registers that the sums need.
inline void loaded_anew(std::uint32_t& place) { __asm__ volatile("" : "+r"(place)); }

// Multiplies elements [at, end) of each row, a stretch at most. The rows take turns by pieces, so that no sum
// waits for itself; what blocks are decoded with is ready for all rows before the first needs it.
template <class V, class Type, std::uint32_t inputs, std::uint32_t rows>
inline void multiply_stretch(const std::uint8_t* weight, std::uint64_t bytes_a_row, std::uint32_t at,
                             std::uint32_t end, Multiply<V, inputs> (&row)[rows]) {
  const std::uint8_t* const first = weight + row_bytes<Type>(at);
  if constexpr (Type::block_length == 1) {
    std::uint64_t place = 0;
    for (; at + 16 <= end; at += 16, place += 16 * Type::block_bytes) {
#pragma GCC unroll 4
      for (std::uint32_t r = 0; r < rows; ++r)
        row[r].take(at, Type::template sixteen<V>(first + r * bytes_a_row + place));
    }
    for (std::uint32_t r = 0; at < end && r < rows; ++r)
      row[r].rest(at, first_of_sixteen<V, Type>(first + r * bytes_a_row + place, end - at), end - at);
  } else {
    const std::uint32_t count = (end - at) / Type::block_length;
    typename Type::Prepared prepared[rows];
    for (std::uint32_t r = 0; r < rows; ++r)
      Type::template prepare<V>(first + r * bytes_a_row, count, prepared[r]);
    through_memory(prepared);
    for (std::uint32_t i = 0; i < count * Type::block_length / Type::piece_length; ++i) {
#pragma GCC unroll 4
      for (std::uint32_t r = 0; r < rows; ++r) {
        std::uint32_t place = at + i * Type::piece_length;
        if constexpr (inputs > 4) loaded_anew(place);
        Shifted<Multiply<V, inputs>> piece{row[r], place};
        Type::template decode<V>(first + r * bytes_a_row, prepared[r], i, piece);
      }
    }
  }
}

// outputs[i][r] = input i times row r, for `rows` rows from `weight` on.
template <class V, class Type, std::uint32_t inputs, std::uint32_t rows>
inline void multiply_rows(const std::uint8_t* weight, std::uint32_t k, const float* const* input,
                          float* const* outputs, std::uint32_t first_output) {
  Multiply<V, inputs> row[rows];
  for (Multiply<V, inputs>& one : row) {
    for (std::uint32_t i = 0; i < inputs; ++i) {
      one.input[i] = input[i];
      one.sums[i] = V::zero();
    }
  }
  for (std::uint32_t at = 0; at < k; at += stretch) {
    for (std::uint32_t r = 0; r < rows; ++r) fetch_ahead<Type>(weight + r * row_bytes<Type>(k), at, k, rows);
    multiply_stretch<V, Type>(weight, row_bytes<Type>(k), at, least(at + stretch, k), row);
  }
  for (std::uint32_t i = 0; i < inputs; ++i) {
    for (std::uint32_t r = 0; r < rows; ++r) outputs[i][first_output + r] = V::sum(row[r].sums[i]);
  }
}

// The same for any number of rows; `input` and `outputs` repeat the last one up to `inputs`.
template <class V, class Type, std::uint32_t inputs>
void multiply_piece(const std::uint8_t* weight, std::uint32_t n_rows, std::uint32_t k,
                    const float* const* input, float* const* outputs) {
  constexpr std::uint32_t rows = V::mv_rows(inputs);
  if constexpr (rows == 0) {
    multiply_piece<V, Type, inputs / 2>(weight, n_rows, k, input, outputs);
    multiply_piece<V, Type, inputs / 2>(weight, n_rows, k, input + inputs / 2, outputs + inputs / 2);
  } else {
    std::uint32_t r = 0;
    for (; r + rows <= n_rows; r += rows)
      multiply_rows<V, Type, inputs, rows>(weight + r * row_bytes<Type>(k), k, input, outputs, r);
    for (; r < n_rows; ++r)
      multiply_rows<V, Type, inputs, 1>(weight + r * row_bytes<Type>(k), k, input, outputs, r);
  }
}

// Rows of weights that one task of a mat-vec takes, of `total` in all: sixteen tasks a thread share well, and
// beyond 512 KiB a turn costs nothing.
template <class Type>
std::uint32_t rows_a_task(std::uint32_t k, std::uint64_t total, std::uint32_t threads) {
  constexpr std::uint64_t most_bytes = 512 * 1024, least_bytes = 16 * 1024;
  const std::uint64_t each = row_bytes<Type>(k) + 1, share = total / (16 * std::uint64_t{threads});
  const std::uint64_t most = most_bytes / each, fewest = least_bytes / each;
  const std::uint64_t rows = (share > most ? most : share < fewest ? fewest : share) / 4 * 4;
  return rows < 4 ? 4 : static_cast<std::uint32_t>(rows);
}

// A dense mat-vec as launched: what the grid covers of what the parameters say, and nothing where less is
// bound.
template <class Type, std::uint32_t inputs>
struct MatVec {
  const GgmlQuantizedMatmulParams& params;
  std::uint32_t rows, tiles, batches, task_rows;

  explicit MatVec(const NativeLaunch& launch) : params(launch.params<GgmlQuantizedMatmulParams>(3)) {
    constexpr std::uint32_t rows_a_group = (inputs <= 2 ? 4 : 2) * GGML_MV_SIMDGROUPS;
    const std::uint64_t covered = std::uint64_t{launch.grid[0]} * rows_a_group;
    rows = covered < params.n ? static_cast<std::uint32_t>(covered) : params.n;
    tiles = least(launch.grid[1], pieces(params.m, inputs));
    batches = launch.grid[2];
    task_rows = rows_a_task<Type>(params.k, std::uint64_t{rows} * tiles * batches, launch.threads);
    if (!bound(launch)) rows = 0;
  }
  bool bound(const NativeLaunch& launch) const {
    const std::uint64_t m = std::uint64_t{batches} * params.m, n = std::uint64_t{batches} * params.n;
    return fits(launch.sizes[0], m, std::uint64_t{params.k} * sizeof(float)) &&
           fits(launch.sizes[1], n, row_bytes<Type>(params.k)) &&
           fits(launch.sizes[2], m, std::uint64_t{params.n} * sizeof(float));
  }
  std::uint32_t row_pieces() const { return pieces(rows, task_rows); }
  std::uint32_t tasks() const { return row_pieces() * tiles * batches; }
};

template <class Type, std::uint32_t inputs>
std::uint32_t mv_tasks(const NativeLaunch& launch) {
  return MatVec<Type, inputs>(launch).tasks();
}

// Task (batch, piece of the weight rows, tile of inputs): neighbours read the same weights. Of the inputs
// `count` are there; the last one stands for the others.
template <class Type, std::uint32_t inputs>
struct MatVecTask {
  std::uint32_t tile, rows, count;
  std::uint64_t batch;
  const std::uint8_t* weight;
  const float* input[inputs];
  float* outputs[inputs];

  MatVecTask(const NativeLaunch& launch, const MatVec<Type, inputs>& product, std::uint32_t task) {
    const std::uint32_t k = product.params.k, m = product.params.m, n = product.params.n;
    const std::uint32_t piece = task / product.tiles % product.row_pieces();
    const std::uint32_t first_row = piece * product.task_rows;
    tile = task % product.tiles;
    batch = task / product.tiles / product.row_pieces();
    rows = least(product.task_rows, product.rows - first_row);
    count = least(inputs, m - tile * inputs);
    weight = launch.buffer<const std::uint8_t>(1) + (batch * n + first_row) * row_bytes<Type>(k);
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const std::uint64_t row = batch * m + tile * inputs + least(i, count - 1);
      input[i] = launch.buffer<const float>(0) + row * k;
      outputs[i] = launch.buffer<float>(2) + row * n + first_row;
    }
  }
};

template <class V, class Type, std::uint32_t inputs>
void mv(const NativeLaunch& launch, std::uint32_t task) {
  const MatVec<Type, inputs> product(launch);
  const MatVecTask<Type, inputs> part(launch, product, task);
  multiply_piece<V, Type, inputs>(part.weight, part.rows, product.params.k, part.input, part.outputs);
}

// A routed product's parameters, and nothing where less is bound. The grid's axis 0 covers weight rows.
template <class Type>
struct Routed {
  const GgmlQuantizedMatmulIdParams& params;
  std::uint32_t rows;
  std::uint64_t routes;

  Routed(const NativeLaunch& launch, int params_slot, std::uint32_t rows_a_group)
      : params(launch.params<GgmlQuantizedMatmulIdParams>(params_slot)) {
    const std::uint64_t covered = std::uint64_t{launch.grid[0]} * rows_a_group;
    rows = covered < params.n ? static_cast<std::uint32_t>(covered) : params.n;
    routes = std::uint64_t{params.n_tokens} * params.top_k;
    const std::uint64_t expert_bytes = params.n * row_bytes<Type>(params.k);
    std::uint64_t last_expert = 0;
    if (params.n_experts == 0 || params.top_k == 0 ||
        __builtin_mul_overflow(std::uint64_t{params.n_experts} - 1, params.expert_stride, &last_expert) ||
        launch.sizes[1] < last_expert || launch.sizes[1] - last_expert < expert_bytes ||
        !fits(launch.sizes[3], routes, std::uint64_t{params.n} * sizeof(float))) {
      rows = 0;
    }
  }
  const std::uint8_t* expert(const NativeLaunch& launch, std::uint32_t number) const {
    return launch.buffer<const std::uint8_t>(1) + number * params.expert_stride;
  }
};

// A routed mat-vec as launched: routes on the grid's axis 1.
template <class Type>
struct RoutedMatVec : Routed<Type> {
  std::uint32_t launched, task_rows;
  explicit RoutedMatVec(const NativeLaunch& launch) : Routed<Type>(launch, 5, 4 * GGML_MV_SIMDGROUPS) {
    launched = this->routes < launch.grid[1] ? static_cast<std::uint32_t>(this->routes) : launch.grid[1];
    task_rows = rows_a_task<Type>(this->params.k, std::uint64_t{this->rows} * launched, launch.threads);
    if (!fits(launch.sizes[0], this->params.n_tokens, std::uint64_t{this->params.k} * sizeof(float)) ||
        !fits(launch.sizes[2], this->routes, sizeof(std::uint32_t))) {
      this->rows = 0;
    }
  }
  std::uint32_t row_pieces() const { return pieces(this->rows, task_rows); }
};

template <class Type>
std::uint32_t id_mv_tasks(const NativeLaunch& launch) {
  const RoutedMatVec<Type> product(launch);
  return product.row_pieces() * product.launched;
}

// Task (route, piece of the weight rows), which multiply(weight, rows, token, input, output) does where the
// expert is in range.
template <class Type, class Multiply>
inline void routed_task(const NativeLaunch& launch, const RoutedMatVec<Type>& product, std::uint32_t task,
                        const Multiply& multiply) {
  const std::uint32_t k = product.params.k, piece = task % product.row_pieces();
  const std::uint32_t route = task / product.row_pieces(), first_row = piece * product.task_rows;
  const std::uint32_t expert = launch.buffer<const std::uint32_t>(2)[route];
  const std::uint32_t n_rows = least(product.task_rows, product.rows - first_row);
  float* const output = launch.buffer<float>(3) + std::uint64_t{route} * product.params.n + first_row;
  if (expert >= product.params.n_experts) {
    if (piece == 0) __atomic_fetch_add(launch.buffer<std::uint32_t>(4), 1u, __ATOMIC_RELAXED);
    for (std::uint32_t r = 0; r < n_rows; ++r) output[r] = 0.0f;
    return;
  }
  const std::uint32_t token = route / product.params.top_k;
  multiply(product.expert(launch, expert) + first_row * row_bytes<Type>(k), n_rows, token,
           launch.buffer<const float>(0) + std::uint64_t{token} * k, output);
}

template <class V, class Type>
void id_mv(const NativeLaunch& launch, std::uint32_t task) {
  const RoutedMatVec<Type> product(launch);
  routed_task(
      launch, product, task,
      [&](const std::uint8_t* weight, std::uint32_t n_rows, std::uint32_t, const float* input,
          float* output) { multiply_piece<V, Type, 1>(weight, n_rows, product.params.k, &input, &output); });
}

// Mat-mat: a task takes mm_block rows of weights and decodes mm_depth elements of each at a time, which then
// meet all inputs, tile by tile: the tile's inputs stay in the first cache, the weights in the second.
constexpr std::uint32_t mm_block = 32, mm_depth = 1024;

template <class V, class Type>
void decode_depth(const std::uint8_t* row, std::uint32_t begin, std::uint32_t end, std::uint32_t k,
                  float* to) {
  constexpr std::uint32_t rows_ahead = 4;
  for (std::uint32_t at = begin; at < end; at += stretch) fetch_ahead<Type>(row, at, k, rows_ahead);
  Store<V, true> store{to - begin};
  decode_row<V, Type>(row, begin, end, store);
}

// What the tiles of a mat-mat read and write, whatever their type.
struct Tiles {
  void (*decode)(const std::uint8_t* row, std::uint32_t begin, std::uint32_t end, std::uint32_t k, float* to);
  const std::uint8_t* weight;  // the block's first row
  std::uint64_t row_bytes;
  std::uint32_t n_rows, k;
};

// Sums of `inputs` x mm_rows products over `depth` elements, in `totals[i][r]`. Weight rows lie mm_depth
// apart.
template <class V, std::uint32_t inputs>
inline void multiply_tile(const float* weights, const float* const* input, std::uint32_t depth,
                          float (&totals)[V::mm_inputs][V::mm_rows]) {
  constexpr std::uint32_t rows = V::mm_rows;
  typename V::Floats sums[inputs][rows];
  for (auto& of_input : sums) {
    for (auto& sum : of_input) sum = V::zero();
  }
  const auto step = [&](std::uint32_t at, const auto& load) {
    typename V::Floats w[rows];
    for (std::uint32_t r = 0; r < rows; ++r) w[r] = V::load(weights + r * mm_depth + at);
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const auto x = load(input[i] + at);
      for (std::uint32_t r = 0; r < rows; ++r) sums[i][r] = V::multiply_add(w[r], x, sums[i][r]);
    }
  };
  std::uint32_t at = 0;
  for (; at + 16 <= depth; at += 16) step(at, [](const float* p) { return V::load(p); });
  if (at < depth) step(at, [n = depth - at](const float* p) { return V::load_first(p, n); });
  for (std::uint32_t i = 0; i < inputs; ++i) {
    for (std::uint32_t r = 0; r < rows; ++r) totals[i][r] = V::sum(sums[i][r]);
  }
}

template <class V, std::uint32_t inputs = V::mm_inputs>
inline void multiply_tile_of(std::uint32_t n, const float* weights, const float* const* input,
                             std::uint32_t depth, float (&totals)[V::mm_inputs][V::mm_rows]) {
  if constexpr (inputs > 1) {
    if (n < inputs) return multiply_tile_of<V, inputs - 1>(n, weights, input, depth, totals);
  }
  multiply_tile<V, inputs>(weights, input, depth, totals);
}

// outputs(i)[r] = inputs(i) times row r of the block, for i in [0, count).
template <class V, class Inputs, class Outputs>
void multiply_block(const Tiles& tiles, std::uint32_t count, const Inputs& inputs, const Outputs& outputs) {
  alignas(64) float weights[mm_block * mm_depth];  // half of a task's stack
  const std::uint32_t n_tiles = pieces(count, V::mm_inputs);
  for (std::uint32_t begin = 0; begin < tiles.k; begin += mm_depth) {
    const std::uint32_t end = least(begin + mm_depth, tiles.k);
    for (std::uint32_t r = 0; r < tiles.n_rows; ++r)
      tiles.decode(tiles.weight + r * tiles.row_bytes, begin, end, tiles.k, weights + r * mm_depth);
    for (std::uint32_t tile = 0; tile < n_tiles; ++tile) {
      // Tiles of about the same height.
      const auto first = static_cast<std::uint32_t>(std::uint64_t{count} * tile / n_tiles);
      const auto last = static_cast<std::uint32_t>(std::uint64_t{count} * (tile + 1) / n_tiles);
      const float* input[V::mm_inputs];
      for (std::uint32_t i = first; i < last; ++i) input[i - first] = inputs(i) + begin;
      for (std::uint32_t r = 0; r < tiles.n_rows; r += V::mm_rows) {
        float totals[V::mm_inputs][V::mm_rows];
        multiply_tile_of<V>(last - first, weights + r * mm_depth, input, end - begin, totals);
        const std::uint32_t n_rows = least(V::mm_rows, tiles.n_rows - r);
        for (std::uint32_t i = first; i < last; ++i) {
          float* const output = outputs(i) + r;
          for (std::uint32_t j = 0; j < n_rows; ++j)
            output[j] = begin == 0 ? totals[i - first][j] : output[j] + totals[i - first][j];
        }
      }
    }
  }
}

// A dense mat-mat as launched; see MatVec.
template <class Type>
struct MatMat {
  const GgmlQuantizedMatmulParams& params;
  std::uint32_t rows, inputs;

  explicit MatMat(const NativeLaunch& launch) : params(launch.params<GgmlQuantizedMatmulParams>(3)) {
    const std::uint64_t rows_covered = std::uint64_t{launch.grid[0]} * GGML_MM_ROWS;
    const std::uint64_t inputs_covered = std::uint64_t{launch.grid[1]} * GGML_MM_INPUTS;
    rows = rows_covered < params.n ? static_cast<std::uint32_t>(rows_covered) : params.n;
    inputs = inputs_covered < params.m ? static_cast<std::uint32_t>(inputs_covered) : params.m;
    if (!fits(launch.sizes[0], params.m, std::uint64_t{params.k} * sizeof(float)) ||
        !fits(launch.sizes[1], params.n, row_bytes<Type>(params.k)) ||
        !fits(launch.sizes[2], params.m, std::uint64_t{params.n} * sizeof(float))) {
      rows = 0;
    }
  }
};

template <class Type>
std::uint32_t mm_tasks(const NativeLaunch& launch) {
  return pieces(MatMat<Type>(launch).rows, mm_block);
}

template <class V, class Type>
void mm(const NativeLaunch& launch, std::uint32_t task) {
  const MatMat<Type> product(launch);
  const std::uint32_t k = product.params.k, n = product.params.n, first_row = task * mm_block;
  const Tiles tiles = {&decode_depth<V, Type>,
                       launch.buffer<const std::uint8_t>(1) + first_row * row_bytes<Type>(k),
                       row_bytes<Type>(k), least(mm_block, product.rows - first_row), k};
  const float* const input = launch.buffer<const float>(0);
  float* const output = launch.buffer<float>(2) + first_row;
  multiply_block<V>(
      tiles, product.inputs, [=](std::uint32_t i) { return input + std::uint64_t{i} * k; },
      [=](std::uint32_t i) { return output + std::uint64_t{i} * n; });
}

// A routed mat-mat as launched: the schedule's tiles on the grid's axis 1.
template <class Type, bool slotted>
struct RoutedMatMat : Routed<Type> {
  explicit RoutedMatMat(const NativeLaunch& launch) : Routed<Type>(launch, 4, GGML_MM_ROWS) {
    const std::uint64_t input_rows = slotted ? this->routes : this->params.n_tokens;
    if (!fits(launch.sizes[0], input_rows, std::uint64_t{this->params.k} * sizeof(float)) ||
        !fits(launch.sizes[2], schedule_words(this->params), sizeof(std::uint32_t))) {
      this->rows = 0;
    }
  }
  std::uint32_t row_pieces() const { return pieces(this->rows, mm_block); }
};

template <class Type, bool slotted>
std::uint32_t id_mm_tasks(const NativeLaunch& launch) {
  const RoutedMatMat<Type, slotted> product(launch);
  return product.row_pieces() * (product.params.n_experts + 1);
}

// Task (expert, block of the weight rows).
template <class V, class Type, bool slotted>
void id_mm(const NativeLaunch& launch, std::uint32_t task) {
  const RoutedMatMat<Type, slotted> product(launch);
  const auto& params = product.params;
  const std::uint32_t expert = task / product.row_pieces(),
                      first_row = task % product.row_pieces() * mm_block;
  const std::uint32_t n_rows = least(mm_block, product.rows - first_row);
  const Schedule schedule(params, launch.buffer<const std::uint32_t>(2));
  if (schedule.first_tile[expert] >= launch.grid[1]) return;
  const std::uint64_t covered = std::uint64_t{launch.grid[1] - schedule.first_tile[expert]} * GGML_MM_INPUTS;
  const std::uint32_t routed = schedule.first_route[expert + 1] - schedule.first_route[expert];
  const std::uint32_t count = covered < routed ? static_cast<std::uint32_t>(covered) : routed;
  if (count == 0) return;
  const std::uint32_t* const routes = schedule.routes + schedule.first_route[expert];
  float* const output = launch.buffer<float>(3) + first_row;
  if (expert == params.n_experts) {
    for (std::uint32_t i = 0; i < count; ++i) {
      float* const row = output + std::uint64_t{routes[i]} * params.n;
      for (std::uint32_t r = 0; r < n_rows; ++r) row[r] = 0.0f;
    }
    return;
  }
  const float* const input = launch.buffer<const float>(0);
  const Tiles tiles = {&decode_depth<V, Type>,
                       product.expert(launch, expert) + first_row * row_bytes<Type>(params.k),
                       row_bytes<Type>(params.k), n_rows, params.k};
  multiply_block<V>(
      tiles, count,
      [&](std::uint32_t i) {
        return input + std::uint64_t{slotted ? routes[i] : routes[i] / params.top_k} * params.k;
      },
      [&](std::uint32_t i) { return output + std::uint64_t{routes[i]} * params.n; });
}

// A gather as launched: threads [16ths of a row, tokens].
template <class Type>
struct Gather {
  const EmbeddingGgmlParams& params;
  std::uint32_t tokens, task_tokens;

  explicit Gather(const NativeLaunch& launch) : params(launch.params<EmbeddingGgmlParams>(4)) {
    const std::uint64_t covered = std::uint64_t{launch.grid[1]} * launch.threads_per_threadgroup[1];
    tokens = covered < params.n_tokens ? static_cast<std::uint32_t>(covered) : params.n_tokens;
    task_tokens = 1 + 16384 / (params.embed_dim + 1);
    if (!fits(launch.sizes[0], params.vocab_size, row_bytes<Type>(params.embed_dim)) ||
        !fits(launch.sizes[1], params.n_tokens, sizeof(std::uint32_t)) ||
        !fits(launch.sizes[2], params.n_tokens, std::uint64_t{params.embed_dim} * sizeof(float))) {
      tokens = 0;
    }
  }
};

template <class Type>
std::uint32_t gather_tasks(const NativeLaunch& launch) {
  const Gather<Type> gather(launch);
  return pieces(gather.tokens, gather.task_tokens);
}

template <class V, class Type>
void gather(const NativeLaunch& launch, std::uint32_t task) {
  const Gather<Type> rows(launch);
  const std::uint32_t dim = rows.params.embed_dim, begin = task * rows.task_tokens;
  const std::uint32_t end = begin + least(rows.task_tokens, rows.tokens - begin);
  for (std::uint32_t token = begin; token < end; ++token) {
    const std::uint32_t id = launch.buffer<const std::uint32_t>(1)[token];
    Store<V> store{launch.buffer<float>(2) + std::uint64_t{token} * dim};
    if (id < rows.params.vocab_size) {
      decode_row<V, Type>(launch.buffer<const std::uint8_t>(0) + id * row_bytes<Type>(dim), 0, dim, store);
    } else {
      __atomic_fetch_add(launch.buffer<std::uint32_t>(3), 1u, __ATOMIC_RELAXED);
      for (std::uint32_t i = 0; i < dim; ++i) store.to[i] = 0.0f;
    }
  }
}

#define METALANE_KERNELS_OF_TYPE(type, ...)                                                         \
  {"embedding_gather_" #type, V::isa, &gather_tasks<type>, &gather<V, type>},                       \
      {"quantized_matmul_mv_" #type "_1", V::isa, &mv_tasks<type, 1>, &mv<V, type, 1>},             \
      {"quantized_matmul_mv_" #type "_2", V::isa, &mv_tasks<type, 2>, &mv<V, type, 2>},             \
      {"quantized_matmul_mv_" #type "_4", V::isa, &mv_tasks<type, 4>, &mv<V, type, 4>},             \
      {"quantized_matmul_mv_" #type "_8", V::isa, &mv_tasks<type, 8>, &mv<V, type, 8>},             \
      {"quantized_matmul_mm_" #type, V::isa, &mm_tasks<type>, &mm<V, type>},                        \
      {"quantized_matmul_mm_simd_" #type, V::isa, &mm_tasks<type>, &mm<V, type>},                   \
      {"quantized_matmul_id_mv_" #type, V::isa, &id_mv_tasks<type>, &id_mv<V, type>},               \
      {"quantized_matmul_id_mm_" #type, V::isa, &id_mm_tasks<type, false>, &id_mm<V, type, false>}, \
      {"quantized_matmul_id_mm_" #type "_slotted", V::isa, &id_mm_tasks<type, true>, &id_mm<V, type, true>},

// Every kernel of every type for the instruction set of V.
template <class V>
constexpr NativeKernel ggml_kernels_of[] = {METALANE_GGML_WEIGHT_TYPES(METALANE_KERNELS_OF_TYPE)};

#undef METALANE_KERNELS_OF_TYPE

}  // namespace
}  // namespace metalane::cpu
