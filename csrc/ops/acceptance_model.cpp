// See acceptance_model.h. Host arithmetic in double precision; nothing here is one of a device's launches.
#include <metalane/error.h>
#include <metalane/ops/acceptance_model.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace metalane {

namespace {

constexpr std::size_t kPositions = DFLASH2_MAX_POSITIONS;

// As the kernel clamps it: to [1e-6, 1 - 1e-6].
double clamped_logit(double confidence) {
  const double c = std::clamp(confidence, 1e-6, 1 - 1e-6);
  return std::log(c / (1 - c));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// -log of the probability that sigmoid(score) gives to what happened.
double log_loss(double score, bool accepted) {
  const double against = accepted ? -score : score;
  return std::max(against, 0.0) + std::log1p(std::exp(-std::abs(against)));
}

void check_observation(const char* op, std::size_t position, float confidence) {
  if (position >= kPositions) {
    throw ArgumentError(op, "position", "below " + std::to_string(kPositions), std::to_string(position));
  }
  if (!(confidence >= 0.0f && confidence <= 1.0f)) {
    throw ArgumentError(op, "confidence", "0 to 1", std::to_string(confidence));
  }
}

}  // namespace

AcceptanceModel::AcceptanceModel(const AcceptanceOptions& options) : options_(options) {
  constexpr const char* op = "AcceptanceModel";
  if (!(options.forgetting > 0 && options.forgetting <= 1)) {
    throw ArgumentError(op, "forgetting", "above 0, at most 1", std::to_string(options.forgetting));
  }
  if (!(options.damping > 0 && std::isfinite(options.damping))) {
    throw ArgumentError(op, "damping", "finite and above 0", std::to_string(options.damping));
  }
  constexpr std::size_t most = std::size_t{1} << 24;
  if (options.capacity == 0 || options.capacity > most) {
    throw ArgumentError(op, "capacity", "1 to " + std::to_string(most), std::to_string(options.capacity));
  }
}

double AcceptanceModel::score(const Parameters& parameters, const Observation& observation) {
  return parameters.slope * observation.logit + parameters.intercepts[observation.position];
}

void AcceptanceModel::observe(std::uint32_t position, float confidence, bool accepted) {
  check_observation("AcceptanceModel.observe", position, confidence);
  Observation observation = {clamped_logit(confidence), 1.0, 0.0, position, accepted};
  observation.predicted = score(parameters_, observation);
  if (observations_.size() < options_.capacity) {
    observations_.push_back(observation);
  } else {
    observations_[oldest_] = observation;
    oldest_ = (oldest_ + 1) % observations_.size();
  }
}

void AcceptanceModel::observe_verified(std::span<const float> confidence,
                                       std::span<const std::uint32_t> accepted,
                                       std::span<const std::uint32_t> verify_rows) {
  constexpr const char* op = "AcceptanceModel.observe_verified";
  const std::size_t lanes = accepted.size();
  if (verify_rows.size() != lanes) {
    throw ArgumentError(op, "verify_rows", std::to_string(lanes) + " lanes, as accepted",
                        std::to_string(verify_rows.size()));
  }
  if (lanes == 0 ? !confidence.empty() : confidence.size() % lanes != 0) {
    throw ArgumentError(op, "confidence", std::to_string(lanes) + " lanes of equal length, as accepted",
                        std::to_string(confidence.size()) + " values");
  }
  const std::size_t positions = lanes == 0 ? 0 : confidence.size() / lanes;
  const auto tested = [&](std::size_t lane) {  // those that stayed, and the one that did not
    const std::size_t drafted = std::max<std::size_t>(verify_rows[lane], 1) - 1;
    return std::min<std::size_t>(std::size_t{accepted[lane]} + 1, std::min(drafted, positions));
  };
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (accepted[lane] > tested(lane)) {
      throw ArgumentError(op, "accepted[" + std::to_string(lane) + "]",
                          "at most the " + std::to_string(tested(lane)) + " drafted tokens of the lane",
                          std::to_string(accepted[lane]));
    }
    for (std::size_t p = 0; p < tested(lane); ++p) check_observation(op, p, confidence[lane * positions + p]);
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    for (std::size_t p = 0; p < tested(lane); ++p) {
      observe(static_cast<std::uint32_t>(p), confidence[lane * positions + p], p < accepted[lane]);
    }
  }
}

double AcceptanceModel::objective(const Parameters& parameters) const {
  double sum = (parameters.slope - 1) * (parameters.slope - 1);
  for (const double intercept : parameters.intercepts) sum += intercept * intercept;
  sum *= options_.damping / 2;
  for (const Observation& one : observations_) {
    sum += one.weight * log_loss(score(parameters, one), one.accepted);
  }
  return sum;
}

// The Hessian is an arrow: intercepts meet only the slope, so that it is solved by eliminating them.
AcceptanceModel::Parameters AcceptanceModel::newton_step() const {
  std::array<double, kPositions> gradient, curvature, mixed{};
  double slope_gradient = options_.damping * (parameters_.slope - 1);
  double slope_curvature = options_.damping;
  for (std::size_t p = 0; p < kPositions; ++p) {
    gradient[p] = options_.damping * parameters_.intercepts[p];
    curvature[p] = options_.damping;
  }
  for (const Observation& one : observations_) {
    const double probability = sigmoid(score(parameters_, one));
    const double residual = one.weight * (probability - (one.accepted ? 1.0 : 0.0));
    const double weight = one.weight * probability * (1 - probability);
    gradient[one.position] += residual;
    curvature[one.position] += weight;
    mixed[one.position] += weight * one.logit;
    slope_gradient += residual * one.logit;
    slope_curvature += weight * one.logit * one.logit;
  }
  for (std::size_t p = 0; p < kPositions; ++p) {
    slope_gradient -= mixed[p] / curvature[p] * gradient[p];
    slope_curvature -= mixed[p] / curvature[p] * mixed[p];
  }
  Parameters step;
  step.slope = -slope_gradient / slope_curvature;
  for (std::size_t p = 0; p < kPositions; ++p) {
    step.intercepts[p] = -(gradient[p] + mixed[p] * step.slope) / curvature[p];
  }
  return step;
}

void AcceptanceModel::fit() {
  constexpr int most_steps = 50;
  constexpr int most_halvings = 30;
  double now = objective(parameters_);
  for (int i = 0; i < most_steps; ++i) {
    const Parameters step = newton_step();
    double length = std::abs(step.slope);
    for (const double part : step.intercepts) length = std::max(length, std::abs(part));
    double scale = 1.0;
    Parameters next;
    double then = now;
    for (int halving = 0; halving < most_halvings; ++halving, scale /= 2) {
      next.slope = parameters_.slope + scale * step.slope;
      for (std::size_t p = 0; p < kPositions; ++p) {
        next.intercepts[p] = parameters_.intercepts[p] + scale * step.intercepts[p];
      }
      then = objective(next);
      if (then <= now) break;
    }
    if (!(then <= now)) break;  // no step leads down: this is the minimum, to rounding
    parameters_ = next;
    now = then;
    if (length < 1e-9) break;
  }
  for (Observation& one : observations_) one.weight *= options_.forgetting;
}

double AcceptanceModel::probability(std::uint32_t position, float confidence) const {
  check_observation("AcceptanceModel.probability", position, confidence);
  return sigmoid(parameters_.slope * clamped_logit(confidence) + parameters_.intercepts[position]);
}

AcceptanceCalibration AcceptanceModel::calibration() const {
  struct Bin {
    double predicted = 0.0;
    double accepted = 0.0;
  };
  constexpr std::size_t bins = 10;
  std::array<Bin, bins> all{};
  AcceptanceCalibration result;
  for (const Observation& one : observations_) {
    const double probability = sigmoid(one.predicted);
    Bin& bin = all[std::min(static_cast<std::size_t>(probability * bins), bins - 1)];
    bin.predicted += one.weight * probability;
    bin.accepted += one.accepted ? one.weight : 0.0;
    result.weight += one.weight;
    result.log_loss += one.weight * log_loss(one.predicted, one.accepted);
  }
  if (!(result.weight > 0)) return result;
  for (const Bin& bin : all) {
    result.predicted += bin.predicted / result.weight;
    result.accepted += bin.accepted / result.weight;
    result.calibration_error += std::abs(bin.predicted - bin.accepted) / result.weight;
  }
  result.log_loss /= result.weight;
  return result;
}

DFlash2VerifyRowsParams AcceptanceModel::verify_rows_params(std::span<const float> costs,
                                                            std::uint32_t rows_per_lane,
                                                            std::span<const std::uint32_t> maximum) const {
  constexpr const char* op = "AcceptanceModel.verify_rows_params";
  if (costs.size() != DFLASH2_VERIFY_COSTS) {
    throw ArgumentError(op, "costs", std::to_string(DFLASH2_VERIFY_COSTS) + " values",
                        std::to_string(costs.size()));
  }
  if (maximum.empty() || maximum.size() > DFLASH2_MAX_LANES) {
    throw ArgumentError(op, "maximum", "1 to " + std::to_string(DFLASH2_MAX_LANES) + " lanes",
                        std::to_string(maximum.size()));
  }
  DFlash2VerifyRowsParams params{};
  params.slope = static_cast<float>(parameters_.slope);
  for (std::size_t p = 0; p < kPositions; ++p) {
    params.intercept[p] = static_cast<float>(parameters_.intercepts[p]);
  }
  std::copy(costs.begin(), costs.end() - 1, params.cost);
  params.cost_64 = costs.back();
  params.lanes = static_cast<std::uint32_t>(maximum.size());
  params.rows_per_lane = rows_per_lane;
  std::copy(maximum.begin(), maximum.end(), params.maximum);
  return params;
}

}  // namespace metalane
