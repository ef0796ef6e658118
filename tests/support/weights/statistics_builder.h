#pragma once
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lib/recipe/statistics/statistics.h"
#include "tests/support/checkpoint_builder.h"

namespace twofour {

/// A statistics file that a test makes, entry by entry.
struct StatisticsBuilder {
  Tensors tensors;
  std::map<std::string, std::string> metadata = {
      {"format", "twofour statistics 1"}, {"tokens", "0"}, {"text", "test"}, {"weighting", "plain"}};
  std::map<std::string, std::vector<std::string>> groups;
  std::map<std::string, int64_t> linears;  ///< with their K, for `structure`

  static std::vector<uint8_t> bytes(const std::vector<float>& numbers) {
    std::vector<uint8_t> out(numbers.size() * sizeof(float));
    std::memcpy(out.data(), numbers.data(), out.size());
    return out;
  }

  void add_floats(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<float>& numbers) {
    tensors.push_back({name, DType::kF32, shape, bytes(numbers)});
  }
  void add_count(const std::string& entry, int64_t count) {
    std::vector<uint8_t> out(sizeof(count));
    std::memcpy(out.data(), &count, out.size());
    tensors.push_back({entry + ".count", DType::kI64, {}, out});
  }

  /// Sums of x x' over `count` tokens whose inputs depend on each other.
  static std::vector<float> sums(int64_t k, int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto n = static_cast<size_t>(k);
    std::vector<float> h(n * n);
    for (int64_t t = 0; t < count; ++t) {
      const float shared = normal(random);
      std::vector<float> x;
      for (size_t j = 0; j < n; ++j) x.push_back((1 + static_cast<float>(j % 7)) * (normal(random) + shared));
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) h[i * n + j] += x[i] * x[j];
      }
    }
    return h;
  }

  /// An entry that serves linears of K inputs; `kind` as the tensor is called.
  void add(const std::vector<std::string>& members, int64_t k, int64_t count,
           const std::string& kind = "hessian", unsigned seed = 1) {
    const std::string& name = members[0];
    const std::vector<float> full = sums(k, count, seed);
    const auto n = static_cast<size_t>(k);
    std::vector<float> numbers;
    if (kind == "hessian") {
      add_floats(name + ".hessian", {k, k}, full);
    } else if (kind == "packed") {
      for (size_t i = 0; i < n; ++i) numbers.insert(numbers.end(), &full[i * n + i], &full[i * n] + n);
      add_floats(name + ".hessian", {k * (k + 1) / 2}, numbers);
    } else if (kind == "hessian_blocks") {
      for (size_t b = 0; b < n; b += 16) {
        for (size_t i = b; i < b + 16; ++i)
          numbers.insert(numbers.end(), &full[i * n + b], &full[i * n + b] + 16);
      }
      add_floats(name + ".hessian_blocks", {k / 16, 16, 16}, numbers);
    } else {
      for (size_t i = 0; i < n; ++i) numbers.push_back(full[i * (n + 1)]);
      add_floats(name + ".sum_squares", {k}, numbers);
    }
    add_count(name, count);
    if (members.size() > 1) groups[name] = members;
    for (const std::string& m : members) linears[m] = k;
  }

  void write(const std::filesystem::path& file) {
    if (!metadata.contains("structure")) metadata["structure"] = structure_of(linears);
    std::string text;
    for (const auto& [name, members] : groups) {
      text += (text.empty() ? "{\"" : ", \"") + name + "\": [";
      for (size_t i = 0; i < members.size(); ++i) text += (i > 0 ? ", \"" : "\"") + members[i] + "\"";
      text += "]";
    }
    if (!text.empty()) metadata["groups"] = text + "}";
    write_safetensors(file, tensors, metadata);
  }
};

}  // namespace twofour
