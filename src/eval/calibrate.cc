// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "codec/registry.h"
#include "eval/linear_algebra.h"
#include "eval/sensitivity.h"

namespace kvik::eval {
namespace {

using codec::PartSpec;
using codec::StageSpec;

// Of the mean of a metric, added to it: directions that no query asked for here may matter
// elsewhere.
constexpr double kRidge = 0.01;
constexpr double kNatsAtUnitStep = 0.01;
constexpr double kLargestCount = 32768;  // of a table: fits a half

// Sums of one head's rows.
class MomentSums {
 public:
  explicit MomentSums(size_t channels)
      : channels_(channels), mean_(channels), products_(channels * channels) {}

  void Add(const float* row) {
    ++count_;
    for (size_t i = 0; i < channels_; ++i) {
      const auto x = static_cast<double>(row[i]);
      mean_[i] += x;
      double* const products = products_.data() + i * channels_;
      for (size_t j = 0; j <= i; ++j) {
        products[j] += x * static_cast<double>(row[j]);
      }
    }
  }
  [[nodiscard]] ChannelMoments Finish() const {
    ChannelMoments moments{mean_, products_};
    const double scale = 1.0 / static_cast<double>(std::max<int64_t>(count_, 1));
    for (double& mean : moments.mean) {
      mean *= scale;
    }
    for (size_t i = 0; i < channels_; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        const double covariance =
            products_[i * channels_ + j] * scale - moments.mean[i] * moments.mean[j];
        moments.covariance[i * channels_ + j] = covariance;
        moments.covariance[j * channels_ + i] = covariance;
      }
    }
    return moments;
  }

 private:
  size_t channels_;
  int64_t count_ = 0;
  std::vector<double> mean_;
  std::vector<double> products_;
};

// Runs fn(layer) -> Result<void> for every layer; the error of the lowest layer that failed.
template <typename Fn>
Result<void> ForEachLayer(int32_t layers, ThreadPool& pool, const Fn& fn) {
  std::vector<Result<void>> results(static_cast<size_t>(layers));
  pool.ParallelFor(results.size(), [&](size_t layer, int /*thread*/) {
    results[layer] = fn(static_cast<int32_t>(layer));
  });
  for (Result<void>& result : results) {
    KVIK_TRY(std::move(result));
  }
  return {};
}

std::string Name(kv::KvPart which) { return which == kv::KvPart::kKey ? "k" : "v"; }

bool IsNeeded(const StageSpec& stage, const std::string& suffix) {
  if (stage.module->name == "affine") {
    return suffix == "/" + stage.args.Word("kind");
  }
  if (stage.module->name == "ecsq") {
    return stage.args.Word("mode") == "calibrated";
  }
  return true;
}

// `values` appended with `matrix` divided by `scale`.
void Append(std::span<const double> matrix, double scale, std::vector<float>& values) {
  for (const double value : matrix) {
    values.push_back(static_cast<float>(value / scale));
  }
}

double GeometricMean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) {
    sum += std::log(std::max(value, 1e-30));
  }
  return std::exp(sum / static_cast<double>(values.size()));
}

double RootMeanSquare(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// About 0, not about the mean.
std::vector<double> SecondMoments(const ChannelMoments& of) {
  std::vector<double> moments = of.covariance;
  const size_t n = of.mean.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      moments[i * n + j] += of.mean[i] * of.mean[j];
    }
  }
  return moments;
}

std::vector<double> Diagonal(std::span<const double> matrix, size_t n) {
  std::vector<double> diagonal;
  for (size_t i = 0; i < n; ++i) {
    diagonal.push_back(matrix[i * n + i]);
  }
  return diagonal;
}

// Block (at, at) of `matrix`, [n, n] each.
std::vector<double> Block(std::span<const double> matrix, size_t at, size_t n) {
  const auto all = static_cast<size_t>(std::lround(std::sqrt(matrix.size())));
  std::vector<double> block;
  for (size_t i = 0; i < n; ++i) {
    const std::span<const double> row = matrix.subspan((at * n + i) * all + at * n, n);
    block.insert(block.end(), row.begin(), row.end());
  }
  return block;
}

// map metric map', where the rows of map [rows, n] are errors.
std::vector<double> CostOfErrors(std::span<const double> map, std::span<const double> metric,
                                 size_t n) {
  const size_t rows = map.size() / n;
  std::vector<double> cost(rows * rows);
  std::vector<double> pulled(n);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < n; ++c) {
      double sum = 0;
      for (size_t d = 0; d < n; ++d) {
        sum += metric[c * n + d] * map[i * n + d];
      }
      pulled[c] = sum;
    }
    for (size_t j = 0; j < rows; ++j) {
      double sum = 0;
      for (size_t c = 0; c < n; ++c) {
        sum += map[j * n + c] * pulled[c];
      }
      cost[i * rows + j] = sum;
    }
  }
  return cost;
}

}  // namespace

Result<std::vector<ChannelMoments>> MeasureMoments(const CalibrationKv& kv,
                                                   const TransformChain& chain, kv::KvPart part,
                                                   bool joint, int32_t sink_tokens,
                                                   ThreadPool& pool) {
  const auto heads = static_cast<size_t>(kv.facts.num_kv_heads);
  const auto channels = static_cast<size_t>(chain.channels());
  const size_t groups = joint ? 1 : heads;  // of a layer
  const size_t members = heads / groups;    // heads of a group
  std::vector<ChannelMoments> moments(static_cast<size_t>(kv.facts.num_layers) * groups);
  const auto measure = [&](int32_t layer) -> Result<void> {
    std::vector<MomentSums> sums(groups, MomentSums(members * channels));
    TransformChain::Output output;
    std::vector<float> values(members * channels);
    for (const CalibrationSequence& sequence : kv.sequences) {
      KVIK_TRY(chain.Run(layer, sequence.Rows(layer, part), output));
      const auto rows = static_cast<size_t>(output.tile.rows);
      for (size_t row = 0; row < rows; ++row) {
        if (output.positions[row] < sink_tokens) {
          continue;
        }
        for (size_t group = 0; group < groups; ++group) {
          for (size_t member = 0; member < members; ++member) {
            const size_t head = group * members + member;
            std::copy_n(output.tile.values.data() + (head * rows + row) * channels, channels,
                        values.data() + member * channels);
          }
          sums[group].Add(values.data());
        }
      }
    }
    for (size_t group = 0; group < groups; ++group) {
      moments[static_cast<size_t>(layer) * groups + group] = sums[group].Finish();
    }
    return {};
  };
  KVIK_TRY(ForEachLayer(kv.facts.num_layers, pool, measure));
  return moments;
}

Calibrator::Calibrator(const CalibrationKv& kv, const CalibrationFacts& facts, Isa isa,
                       ThreadPool& pool)
    : kv_(kv), facts_(facts), isa_(isa), pool_(pool) {}

Result<void> Calibrator::Add(const codec::PipelineSpec& pipeline) {
  if (pipeline.selector.module != nullptr ||
      pipeline.ToString().find("mix(") != std::string::npos) {
    KVIK_TRY(AddScores());
  }
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    KVIK_TRY(AddPart(pipeline.part(which), which));
  }
  return {};
}

Result<void> Calibrator::AddPart(const PartSpec& part, kv::KvPart which) {
  for (size_t i = 0; i <= part.transforms.size(); ++i) {
    const StageSpec& stage = i < part.transforms.size() ? part.transforms[i] : part.quantizer;
    for (const std::string& suffix : stage.module->needs) {
      if (IsNeeded(stage, suffix)) {
        KVIK_TRY(AddTensor(part, which, i, suffix));
      }
    }
  }
  const std::string weights = codec::SideKey(part, which, part.transforms.size()) + "/weights";
  if (part.quantizer.module->name == "ecsq" && side_info_.Find(weights) == nullptr &&
      IsNeeded(part.quantizer, "/weights")) {
    KVIK_TRY(AddWeights(part, which, weights));
  }
  if (part.coder.module->name == "rans" &&
      side_info_.Find(codec::TablesKey(part, which)) == nullptr) {
    KVIK_TRY(AddTables(part, which));
  }
  return {};
}

Result<const std::vector<ChannelMoments>*> Calibrator::Moments(const PartSpec& part,
                                                               kv::KvPart which, size_t count,
                                                               bool joint) {
  const std::string key = Name(which) + (joint ? " joint/" : "/") + part.TransformsBefore(count);
  const auto found = moments_.find(key);
  if (found != moments_.end()) {
    return &found->second;
  }
  KVIK_ASSIGN(const TransformChain chain,
              TransformChain::Create(part, which, count, kv_.facts, side_info_, isa_));
  KVIK_ASSIGN(std::vector<ChannelMoments> moments,
              MeasureMoments(kv_, chain, which, joint, kCalibrationSinkTokens, pool_));
  return &moments_.emplace(key, std::move(moments)).first->second;
}

Result<std::vector<std::vector<double>>> Calibrator::CostAfter(const PartSpec& part,
                                                               kv::KvPart which,
                                                               size_t count) const {
  KVIK_ASSIGN(const TransformChain chain,
              TransformChain::Create(part, which, count, kv_.facts, side_info_, isa_));
  const auto heads = static_cast<size_t>(kv_.facts.num_kv_heads);
  const auto head_dim = static_cast<size_t>(kv_.facts.head_dim);
  const size_t all = heads * head_dim;
  const size_t coefficients = heads * static_cast<size_t>(chain.channels());
  std::vector<std::vector<double>> costs(static_cast<size_t>(kv_.facts.num_layers));
  const auto cost_of_layer = [&](int32_t layer) -> Result<void> {
    // Of all values of the layer's part, this many nats a unit of cost.
    const double nats =
        facts_.sensitivity[static_cast<size_t>(layer) * 2 + static_cast<size_t>(which)] /
        static_cast<double>(all);
    std::vector<double> metric(all * all);  // a block a head
    double trace = 0;
    for (size_t head = 0; head < heads; ++head) {
      const HeadMetric& measured = facts_.metric[static_cast<size_t>(layer) * heads + head];
      const std::vector<double>& of_head = which == kv::KvPart::kValue ? measured.value
                                           : chain.unrotates()         ? measured.unrotated_key
                                                                       : measured.rotated_key;
      for (size_t i = 0; i < head_dim; ++i) {
        for (size_t j = 0; j < head_dim; ++j) {
          metric[(head * head_dim + i) * all + head * head_dim + j] =
              of_head[i * head_dim + j] * nats;
        }
        trace += of_head[i * head_dim + i] * nats;
      }
    }
    KVIK_ASSIGN(const std::optional<std::vector<double>> map, chain.ErrorMap(layer));
    std::vector<double>& cost = costs[static_cast<size_t>(layer)];
    if (map) {
      cost = CostOfErrors(*map, metric, all);
      return {};
    }
    // All that is known is the mean.
    cost.resize(coefficients * coefficients);
    for (size_t i = 0; i < coefficients; ++i) {
      cost[i * coefficients + i] = trace / static_cast<double>(coefficients);
    }
    return {};
  };
  KVIK_TRY(ForEachLayer(kv_.facts.num_layers, pool_, cost_of_layer));
  return costs;
}

Result<void> Calibrator::AddTensor(const PartSpec& part, kv::KvPart which, size_t index,
                                   const std::string& suffix) {
  const std::string name = codec::SideKey(part, which, index) + suffix;
  if (side_info_.Find(name) != nullptr) {
    return {};
  }
  const bool is_quantizer = index == part.transforms.size();
  const std::string& stage = (is_quantizer ? part.quantizer : part.transforms[index]).module->name;
  const std::string what = stage + suffix;
  const bool joint = stage == "jklt";
  KVIK_ASSIGN(const std::vector<ChannelMoments>* moments, Moments(part, which, index, joint));
  const size_t channels = moments->front().mean.size();
  std::vector<std::vector<double>> costs;  // of every cell of the moments
  if (joint || stage == "qklt" || stage == "affine") {
    KVIK_ASSIGN(const std::vector<std::vector<double>> of_layers, CostAfter(part, which, index));
    const size_t groups = moments->size() / of_layers.size();
    for (size_t cell = 0; cell < moments->size(); ++cell) {
      costs.push_back(Block(of_layers[cell / groups], cell % groups, channels));
    }
  }
  std::vector<float> values;
  bool matrix = false;
  for (size_t cell = 0; cell < moments->size(); ++cell) {
    const ChannelMoments& of = (*moments)[cell];
    if (what == "center") {
      Append(of.mean, 1, values);
    } else if (what == "klt") {
      matrix = true;
      Append(Eigen(of.covariance, channels).vectors, 1, values);
    } else if (what == "qklt" || what == "jklt") {
      matrix = true;
      const WeightedBasis basis = MakeWeightedBasis(of.covariance, costs[cell], channels, kRidge);
      // Rows of unit length on average: values stay in the range of what came in.
      Append(basis.forward, RootMeanSquare(basis.forward) * std::sqrt(channels), values);
    } else if (what == "affine/diagonal") {
      // The largest channel decides the step of all: none is to be smaller than it has to.
      std::vector<double> scale = Diagonal(SecondMoments(of), channels);
      const double mean = GeometricMean(scale);
      for (double& s : scale) {
        s = 1 / std::sqrt(std::max(s / mean, 1e-6));
      }
      Append(scale, 1, values);
    } else if (what == "affine/full") {
      matrix = true;
      const std::vector<double> map =
          MakeBalancedMap(SecondMoments(of), costs[cell], channels, kRidge);
      Append(map, RootMeanSquare(map) * std::sqrt(channels), values);
    } else if (what == "ecsq/sigma") {
      std::vector<double> sigma = Diagonal(of.covariance, channels);
      for (double& s : sigma) {
        s = std::sqrt(std::max(s, 0.0));
      }
      Append(sigma, 1, values);
    } else {
      return Err(ErrorCode::kUnsupported, "%s: nothing is known of how to calibrate %s",
                 name.c_str(), what.c_str());
    }
  }
  std::vector<int32_t> shape = {kv_.facts.num_layers};
  if (!joint) {
    shape.push_back(kv_.facts.num_kv_heads);
  }
  shape.push_back(static_cast<int32_t>(channels));
  if (matrix) {
    shape.push_back(static_cast<int32_t>(channels));
  }
  return side_info_.Add(name, std::move(shape), values);
}

Result<void> Calibrator::AddWeights(const PartSpec& part, kv::KvPart which,
                                    const std::string& name) {
  const size_t count = part.transforms.size();
  KVIK_ASSIGN(const auto costs, CostAfter(part, which, count));
  // Uniform errors within a step: a twelfth of its square. Every cell is to cost the same.
  const auto heads = static_cast<size_t>(kv_.facts.num_kv_heads);
  const double allowed = 12 * kNatsAtUnitStep / (2 * static_cast<double>(costs.size() * heads));
  std::vector<float> values;
  for (const std::vector<double>& cost : costs) {
    const auto coefficients = static_cast<size_t>(std::lround(std::sqrt(cost.size())));
    const std::vector<double> diagonal = Diagonal(cost, coefficients);
    const size_t channels = coefficients / heads;
    for (size_t head = 0; head < heads; ++head) {
      const auto first = diagonal.begin() + static_cast<ptrdiff_t>(head * channels);
      const double sum = std::accumulate(first, first + static_cast<ptrdiff_t>(channels), 0.0);
      const double step = std::sqrt(allowed / std::max(sum, 1e-30));
      values.push_back(static_cast<float>(std::clamp(step, 1e-6, 60000.0)));
    }
  }
  return side_info_.Add(name, {kv_.facts.num_layers, kv_.facts.num_kv_heads}, values);
}

Result<void> Calibrator::AddTables(const PartSpec& part, kv::KvPart which) {
  const size_t count = part.transforms.size();
  KVIK_ASSIGN(const TransformChain chain,
              TransformChain::Create(part, which, count, kv_.facts, side_info_, isa_));
  codec::StageSite site;
  site.model = &kv_.facts;
  site.side_info = &side_info_;
  site.part = which;
  site.channels = chain.channels();
  site.side_key = codec::SideKey(part, which, count);
  KVIK_ASSIGN(const std::unique_ptr<codec::Quantizer> quantizer,
              part.quantizer.module->make_quantizer(part.quantizer.args, site));

  // By layer, then context and symbol.
  constexpr size_t kSymbols = 256;
  std::vector<std::vector<double>> counts(static_cast<size_t>(kv_.facts.num_layers));
  const auto count_layer = [&](int32_t layer) -> Result<void> {
    std::vector<double>& own = counts[static_cast<size_t>(layer)];
    TransformChain::Output output;
    codec::SymbolPlanes planes;
    std::vector<std::byte> side;
    for (const CalibrationSequence& sequence : kv_.sequences) {
      KVIK_TRY(chain.Run(layer, sequence.Rows(layer, which), output));
      planes.Clear();
      side.clear();
      codec::ByteWriter writer(side);
      KVIK_TRY(quantizer->Quantize(chain.ContextOf(layer, output), output.tile, planes, writer));
      for (const codec::SymbolPlane& plane : planes.used()) {
        if (plane.uniform) {
          continue;
        }
        const size_t at = static_cast<size_t>(plane.context) * kSymbols;
        if (own.size() < at + kSymbols) {
          own.resize(at + kSymbols);
        }
        for (const uint8_t symbol : plane.symbols) {
          own[at + symbol] += 1;
        }
      }
    }
    return {};
  };
  KVIK_TRY(ForEachLayer(kv_.facts.num_layers, pool_, count_layer));

  std::vector<double> total;
  for (const std::vector<double>& own : counts) {
    total.resize(std::max(total.size(), own.size()));
    for (size_t i = 0; i < own.size(); ++i) {
      total[i] += own[i];
    }
  }
  size_t width = 2;
  double largest = 1;
  for (size_t i = 0; i < total.size(); ++i) {
    if (total[i] > 0) {
      width = std::max(width, i % kSymbols + 1);
      largest = std::max(largest, total[i]);
    }
  }
  const size_t contexts = std::max<size_t>(total.size() / kSymbols, 1);
  total.resize(contexts * kSymbols);
  std::vector<float> values;
  for (size_t context = 0; context < contexts; ++context) {
    const std::span<const double> row = std::span(total).subspan(context * kSymbols, width);
    Append(row, std::max(1.0, largest / kLargestCount), values);
  }
  return side_info_.Add(codec::TablesKey(part, which),
                        {static_cast<int32_t>(contexts), static_cast<int32_t>(width)}, values);
}

Result<void> Calibrator::AddScores() {
  const std::vector<int32_t> shape = {kv_.facts.num_layers, kv_.facts.num_kv_heads};
  std::vector<float> values;
  Append(facts_.scores.attention, 1, values);
  KVIK_TRY(side_info_.Add("scores/attention", shape, values));
  values.clear();
  Append(facts_.scores.output, 1, values);
  return side_info_.Add("scores/output", shape, values);
}

Result<CalibrationFacts> MeasureCalibrationFacts(
    model::Model& model, const CalibrationKv& kv, const CalibrationSequence& repeated,
    uint64_t seed, Isa isa, ThreadPool& pool,
    const std::function<void(size_t done, size_t total)>& on_progress) {
  CalibrationFacts facts;
  AttentionMetricOptions metric_options;
  metric_options.seed = seed;
  metric_options.sink_tokens = kCalibrationSinkTokens;
  SensitivityOptions noise_options;
  noise_options.seed = seed;
  noise_options.sink_tokens = kCalibrationSinkTokens;
  const auto layers = static_cast<size_t>(kv.facts.num_layers);
  const auto heads = static_cast<size_t>(kv.facts.num_kv_heads);
  const size_t noise_steps =
      layers * 2 * std::min(static_cast<size_t>(noise_options.prompts), kv.sequences.size());
  const size_t total = layers * heads + noise_steps;
  facts.metric = ComputeAttentionMetric(kv, metric_options, pool,
                                        [&](size_t done) { on_progress(done, total); });
  facts.scores = ComputeHeadScores(kv, repeated, HeadScoreOptions{}, pool);

  // The size of noise that a coder at two or three bits makes.
  constexpr double kNoise = 0.3;
  const codec::SideInfo nothing;
  NoiseShape shapes[2];
  for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    NoiseShape& shape = shapes[static_cast<size_t>(part)];
    const bool unrotate = part == kv::KvPart::kKey && !kv.facts.rope_frequencies.empty();
    KVIK_ASSIGN(const codec::PipelineSpec spec,
                codec::PipelineSpec::Parse(unrotate ? "k:prerope|v:none -> none -> none"
                                                    : "none -> none -> none"));
    const PartSpec& part_spec = spec.part(part);
    KVIK_ASSIGN(const TransformChain chain,
                TransformChain::Create(part_spec, part, part_spec.transforms.size(), kv.facts,
                                       nothing, isa));
    KVIK_ASSIGN(const std::vector<ChannelMoments> moments,
                MeasureMoments(kv, chain, part, false, kCalibrationSinkTokens, pool));
    std::vector<double> variances;
    for (size_t cell = 0; cell < moments.size(); ++cell) {
      const HeadMetric& metric = facts.metric[cell];
      shape.bases.push_back(MakeWeightedBasis(moments[cell].covariance,
                                              part == kv::KvPart::kValue ? metric.value
                                              : unrotate                 ? metric.unrotated_key
                                                                         : metric.rotated_key,
                                              moments[cell].mean.size(), kRidge));
      const std::vector<double>& own = shape.bases.back().variances;
      variances.insert(variances.end(), own.begin(), own.end());
      if ((cell + 1) % heads == 0) {
        shape.deviations.push_back(kNoise * std::sqrt(GeometricMean(variances)));
        variances.clear();
      }
    }
  }
  KVIK_ASSIGN(facts.sensitivity,
              MeasureSensitivity(model, kv, shapes[0], shapes[1], noise_options, [&](size_t steps) {
                on_progress(layers * heads + steps, total);
              }));
  // What was too small to measure still matters a little.
  std::vector<double> sorted = facts.sensitivity;
  std::sort(sorted.begin(), sorted.end());
  for (double& value : facts.sensitivity) {
    value = std::max(value, sorted[sorted.size() / 2] * 1e-3);
  }
  return facts;
}

}  // namespace kvik::eval
