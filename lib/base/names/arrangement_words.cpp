#include "lib/base/names/arrangement_words.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <vector>

namespace twofour {
namespace {

/// Beginnings of words in keys that name an arrangement of bytes.
constexpr std::string_view kBeginnings[] = {
    "layout", "swizzl",  "interleav", "shuffl",  "preshuffl", "permut", "transpos", "marlin", "bitblas",
    "repack", "prepack", "packed",    "packing", "reorder",   "nibble", "endian",   "padded", "padding",
};
/// Such words as a whole.
constexpr std::string_view kWholeWords[] = {"pack", "tile", "tiles", "tiled", "tiling", "stride", "strides"};
/// Words that name one before "order" and before "major".
constexpr std::string_view kOrdered[] = {"byte",    "bit",     "nibble",  "pack",   "packing",
                                         "code",    "codes",   "scale",   "scales", "weight",
                                         "weights", "element", "storage", "memory"};
constexpr std::string_view kMajors[] = {"row", "col", "column", "k", "n", "mn", "kn", "nk"};
/// Words of keys whose values may name one.
constexpr std::string_view kHolders[] = {"format", "fmt", "storage", "encoding", "type", "mode"};
/// Parts of values that do.
constexpr std::string_view kValues[] = {"swizzl", "interleav", "shuffl",      "permut", "transpos",
                                        "marlin", "bitblas",   "tile_packed", "tiled"};
/// Values that name the usual arrangement.
constexpr std::string_view kUsual[] = {"",       "none",      "false",     "0", "plain", "plainlayout",
                                       "linear", "row_major", "contiguous"};

/// A key that producers write, and the values with which it states nothing that readers do not know. None:
/// any.
struct KnownKey {
  std::string_view key;
  std::vector<std::string_view> values = {};
};
/// Sources: GPTQModel, quantization/config.py (pack_dtype, pack_impl); AutoRound, export (packing_format);
/// AMD Quark, torch/utils/pack.py (pack_method); transformers, utils/quantization_config.py; llm-compressor,
/// args/dataset_arguments.py; vLLM, base_config.py (packed_modules_mapping).
const std::vector<KnownKey>& known_keys() {
  static const std::vector<KnownKey> keys = {
      {"pack_dtype", {"int32", "torch.int32"}},
      {"packing_format",
       {"auto_round", "auto_round:gptq", "auto_round:awq", "auto_round:auto_gptq", "auto_round:auto_awq",
        "auto_round:gptqmodel", "auto_round:llm_compressor", "auto_round:fp8", "auto_round:fp8_static",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "float-quantized",
        "pack-quantized", "gptq", "gptq_v2", "awq", "gemm"}},
      {"pack_method", {"reorder", "order"}},
      {"pack_impl"},
      {"packed_modules_mapping"},
      {"use_marlin"},
      {"shuffle"},
      {"shuffle_calibration_samples"},
      {"padding_side"},
  };
  return keys;
}

bool is_in(const auto& list, std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

std::string lower(std::string_view text) {
  std::string all(text);
  for (char& c : all) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return all;
}

/// The words of a key in lower case: "is", "sf", "swizzled" of "is_sf_swizzled" and of "isSfSwizzled".
std::vector<std::string> words_of(std::string_view key) {
  std::vector<std::string> words(1);
  char before = '_';
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const bool begins = std::isupper(byte) && std::islower(static_cast<unsigned char>(before));
    if ((begins || !std::isalnum(byte)) && !words.back().empty()) words.emplace_back();
    if (std::isalnum(byte)) words.back() += static_cast<char>(std::tolower(byte));
    before = c;
  }
  return words;
}

bool is_key_of_one(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (is_in(kWholeWords, word)) return true;
    if (std::ranges::any_of(kBeginnings, [&](std::string_view begin) { return word.starts_with(begin); }))
      return true;
    if (word == "order" && (words.size() == 1 || (i > 0 && is_in(kOrdered, words[i - 1])))) return true;
    if (word == "major" && i > 0 && is_in(kMajors, words[i - 1])) return true;
  }
  return false;
}

/// True if a value turns nothing on, or names the usual arrangement.
bool is_usual(const Json& value) {
  if (value.is_object() && value.contains("_type")) return is_usual(value["_type"]);
  if (value.is_object() || value.is_array())
    return std::all_of(value.begin(), value.end(), [](const Json& inner) { return is_usual(inner); });
  if (value.is_string()) return is_in(kUsual, lower(value.get<std::string>()));
  return value.is_null() || value == false || value == 0;
}

}  // namespace

bool names_arrangement(std::string_view key, const Json& value) {
  for (const KnownKey& known : known_keys()) {
    if (known.key != key) continue;
    return !known.values.empty() && !is_usual(value) &&
           !(value.is_string() && is_in(known.values, lower(value.get<std::string>())));
  }
  const std::vector<std::string> words = words_of(key);
  if (is_key_of_one(words)) return !is_usual(value);
  if (!value.is_string() || is_usual(value)) return false;
  const std::string text = lower(value.get<std::string>());
  return std::ranges::any_of(words, [](const std::string& word) { return is_in(kHolders, word); }) &&
         std::ranges::any_of(kValues, [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace twofour
