// How probable it is that a drafted token is accepted: a model of the drafter's confidence, fitted while
// serving.
#pragma once

#include <metalane/export.h>
#include <metalane/ops/dflash2_selector_params.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace metalane {

struct AcceptanceOptions {
  double forgetting = 0.99;  // what the weight of every observation is multiplied with by each fit; in (0, 1]
  double damping = 1.0;      // pull towards slope 1 and intercepts 0, in observations; above 0
  std::size_t capacity = 4096;  // observations kept; the oldest go first
};

// How the probabilities compare with what happened. Each observation counts with its present weight, and with
// the probability that the model gave it before it had learned from it.
struct AcceptanceCalibration {
  double weight = 0.0;     // of all observations
  double predicted = 0.0;  // mean probability
  double accepted = 0.0;   // share that was accepted
  double calibration_error =
      0.0;                // |predicted - accepted| of ten equal bins of probability, averaged by weight
  double log_loss = 0.0;  // mean, in nats
};

// P(position p is accepted, given that all before it were) = sigmoid(slope * logit(confidence) +
// intercept[p]), as dispatch_dflash2_verify_rows computes it, confidences clamped likewise. For one thread at
// a time.
class METALANE_API AcceptanceModel {
 public:
  // Slope 1 and intercepts 0: a confidence is the probability. Throws ArgumentError.
  explicit AcceptanceModel(const AcceptanceOptions& options = {});

  // One drafted token that was tested. Throws ArgumentError for a position past 14 or a confidence that is
  // not within 0 to 1.
  void observe(std::uint32_t position, float confidence, bool accepted);
  // What a verification tested: confidence [lanes, positions], and of each lane the rows that were verified
  // (0: none) and how many drafted tokens stayed. The first one that did not stay was rejected; those behind
  // it were not tested. Throws ArgumentError before anything is taken in.
  void observe_verified(std::span<const float> confidence, std::span<const std::uint32_t> accepted,
                        std::span<const std::uint32_t> verify_rows);

  // The weighted maximum of likelihood and damping over what is kept, by Newton steps (iteratively reweighted
  // least squares) from the last fit, halved while they lead uphill. Then every weight is multiplied with
  // `forgetting`.
  void fit();

  double slope() const noexcept { return parameters_.slope; }
  std::span<const double> intercepts() const noexcept { return parameters_.intercepts; }
  double probability(std::uint32_t position, float confidence) const;
  AcceptanceCalibration calibration() const;
  // With costs of 0 to 64 rows in all, and the most rows of each lane. dispatch_dflash2_verify_rows checks
  // the rest.
  DFlash2VerifyRowsParams verify_rows_params(std::span<const float> costs, std::uint32_t rows_per_lane,
                                             std::span<const std::uint32_t> maximum) const;

 private:
  struct Observation {
    double logit;
    double weight;
    double predicted;
    std::uint32_t position;
    bool accepted;
  };
  struct Parameters {
    double slope = 1.0;
    std::array<double, DFLASH2_MAX_POSITIONS> intercepts{};
  };

  static double score(const Parameters& parameters, const Observation& observation);
  double objective(const Parameters& parameters) const;
  Parameters newton_step() const;

  AcceptanceOptions options_;
  Parameters parameters_;
  std::vector<Observation> observations_;  // a ring once it is full
  std::size_t oldest_ = 0;
};

}  // namespace metalane
