#include "lib/recipe/settings/recovery.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>

#include "formats/error.h"

namespace twofour {
namespace {

constexpr std::string_view kPasses = "passes", kKept = "kept_pass", kTokens = "tokens",
                           kHeldOut = "held_out_tokens", kBefore = "loss_before", kAfter = "loss_after",
                           kDevice = "device", kTuned = "tuned";
constexpr size_t kBitDigits = 8;

std::string text_of(const std::vector<uint32_t>& bits) {
  std::string text;
  for (const uint32_t b : bits) text += fmt::format("{:08x}", b);
  return text;
}

std::vector<uint32_t> bits_of(const JsonPlace& place, const Json& json) {
  const auto text = json.get<std::string>();
  std::vector<uint32_t> bits(text.size() / kBitDigits);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (std::sscanf(text.c_str() + i * kBitDigits, "%8x", &bits[i]) != 1) bits[i] = 0;
  }
  if (text_of(bits) != text) place.refuse("eight hexadecimal digits for each global scale", json);
  return bits;
}

}  // namespace

Json recovery_to_json(const Recovery& r) {
  Json tuned = Json::object();
  for (const auto& [name, t] : r.tuned) {
    Json& one = tuned[name] = Json::array({t.from.hex(), t.to.hex()});
    if (!t.bits.empty()) one.push_back(text_of(t.bits));
  }
  return {{kPasses, r.passes}, {kKept, r.kept},   {kTokens, r.tokens}, {kHeldOut, r.held_out},
          {kBefore, r.before}, {kAfter, r.after}, {kDevice, r.device}, {kTuned, std::move(tuned)}};
}

Recovery recovery_from_json(const JsonPlace& place, const Json& json) {
  check_keys(place.where, place.path, json,
             std::array{kPasses, kKept, kTokens, kHeldOut, kBefore, kAfter, kDevice, kTuned}, place.unknown);
  Recovery r;
  r.passes = whole_number<int64_t>(json.at(kPasses));
  r.kept = whole_number<int64_t>(json.at(kKept));
  r.tokens = whole_number<int64_t>(json.at(kTokens));
  r.held_out = whole_number<int64_t>(json.at(kHeldOut));
  r.before = json.at(kBefore).get<double>();
  r.after = json.at(kAfter).get<double>();
  r.device = json.at(kDevice).get<std::string>();
  for (const auto& [name, hashes] : json.at(kTuned).items()) {
    const JsonPlace below = place.below(kTuned).below(name);
    if (!hashes.is_array() || hashes.size() < 2 || hashes.size() > 3)
      below.refuse("two hashes, and the bits of global scales", hashes);
    Recovery::Tuned& t = r.tuned[name];
    t.from = parse_hash(place.where, hashes.at(0).get<std::string>());
    t.to = parse_hash(place.where, hashes.at(1).get<std::string>());
    if (hashes.size() == 3) t.bits = bits_of(below, hashes.at(2));
  }
  const bool learned = r.kept > 0;
  const bool fits = r.kept >= 0 && r.kept <= r.passes && std::isfinite(r.before) &&
                    (learned ? r.after < r.before : r.after == r.before) && learned == !r.tuned.empty();
  if (!fits)
    place.refuse("a loss that fell by what was tuned, or nothing that was tuned",
                 {{kKept, r.kept}, {kBefore, r.before}, {kAfter, r.after}});
  return r;
}

}  // namespace twofour
