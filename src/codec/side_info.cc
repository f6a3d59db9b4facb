// SPDX-License-Identifier: Apache-2.0
#include "codec/side_info.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/float16.h"

namespace kvik::codec {
namespace {

std::string ShapeText(std::span<const int32_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace

std::span<const float> SideTensor::At(std::span<const int32_t> index) const {
  KVIK_CHECK(index.size() <= shape.size());
  size_t inner = values.size();
  size_t offset = 0;
  for (size_t i = 0; i < index.size(); ++i) {
    KVIK_CHECK(index[i] >= 0 && index[i] < shape[i]);
    inner /= static_cast<size_t>(shape[i]);
    offset += static_cast<size_t>(index[i]) * inner;
  }
  return {values.data() + offset, inner};
}

const SideTensor* SideInfo::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<const SideTensor*> SideInfo::Need(std::string_view name,
                                         std::span<const int32_t> shape) const {
  const SideTensor* const tensor = Find(name);
  if (tensor == nullptr) {
    return Error{ErrorCode::kUnsupported,
                 "the calibrated tensor \"" + std::string(name) +
                     "\" is missing: calibrate this pipeline for this model (kvik calibrate)"};
  }
  if (tensor->shape.size() != shape.size() ||
      !std::equal(shape.begin(), shape.end(), tensor->shape.begin())) {
    return Error{ErrorCode::kUnsupported, "the calibrated tensor \"" + std::string(name) +
                                              "\" has shape " + ShapeText(tensor->shape) +
                                              ", not " + ShapeText(shape)};
  }
  return tensor;
}

Result<void> SideInfo::Add(std::string name, std::vector<int32_t> shape,
                           std::span<const float> values) {
  size_t size = shape.empty() ? 0 : 1;
  for (const int32_t dimension : shape) {
    if (dimension <= 0 || size > values.size() / static_cast<size_t>(dimension)) {
      size = 0;
      break;
    }
    size *= static_cast<size_t>(dimension);
  }
  if (size == 0 || size != values.size()) {
    return Error{ErrorCode::kInvalidInput, "tensor \"" + name + "\": shape " + ShapeText(shape) +
                                               " does not hold " + std::to_string(values.size()) +
                                               " values"};
  }
  SideTensor tensor{std::move(shape), {}};
  tensor.values.reserve(values.size());
  for (const float value : values) {
    const float rounded = ToFloat(ToF16(value));
    if (!std::isfinite(rounded)) {
      return Error{ErrorCode::kInvalidInput, "tensor \"" + name + "\": " + std::to_string(value) +
                                                 " is not a finite half-precision number"};
    }
    tensor.values.push_back(rounded);
  }
  tensors_.insert_or_assign(std::move(name), std::move(tensor));
  return {};
}

}  // namespace kvik::codec
